"""Figures under the names that dashboards and autoscalers made for vLLM know, for those that mean the same here.

They are read off our own when somebody asks, and so cost nothing. What is not known here is left out, not made up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Theirs:
    """One of their names, and of which of our samples it is made. Samples that differ in nothing else are added."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: {"model": "model_name"})
    """What our labels are called."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Which values our labels may have."""


_TEXT = {"kind": ("Text",)}
_SUCCESS = {"reason": ("stop", "length", "tool_calls")}
_QUEUE = {"what": ("queue",)}
VLLM: Mapping[str, Theirs] = {
    "mstar_live_answers": Theirs("vllm:num_requests_running"),
    "mstar_held": Theirs("vllm:num_requests_waiting", {}, _QUEUE),
    "mstar_refusals": Theirs("vllm:admission_rejections", {}, {"code": ("overloaded",)}),
    "mstar_tokens_read": Theirs("vllm:prompt_tokens"),
    "mstar_tokens_written": Theirs("vllm:generation_tokens"),
    "mstar_first_emission_seconds": Theirs("vllm:time_to_first_token_seconds", only=_TEXT),
    "mstar_between_emissions_seconds": Theirs("vllm:inter_token_latency_seconds", only=_TEXT),
    "mstar_answer_seconds": Theirs("vllm:e2e_request_latency_seconds"),
    "mstar_answers": Theirs("vllm:request_success", {"model": "model_name", "reason": "finished_reason"}, _SUCCESS),
}
"""By the names of our own figures."""


class Compat(Collector):
    """Our figures again, under their names."""

    def __init__(self, own: Iterable[Collector]) -> None:
        self._own = tuple(own)

    def describe(self) -> list[Metric]:
        """Nothing: what there is, is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every figure that they have a name for."""
        for family in (family for one in self._own for family in one.collect()):
            if family.name == "mstar_held":
                yield _pages(family)
            if (theirs := VLLM.get(family.name)) is not None:
                yield _renamed(family, theirs)


def _renamed(family: Metric, theirs: Theirs) -> Metric:
    made = Metric(theirs.name, family.documentation, family.type)
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        is_meant = all(sample.labels[label] in values for label, values in theirs.only.items())
        if is_meant and not sample.name.endswith("_created"):
            labels = {theirs.labels.get(label, label): value for label, value in sample.labels.items()}
            known = tuple((label, labels[label]) for label in (*theirs.labels.values(), "le") if label in labels)
            sums[theirs.name + sample.name.removeprefix(family.name), known] += sample.value
    made.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
    return made


def _pages(held: Metric) -> Metric:
    """How much of the memory for caches is used, by model, of what workers hold."""
    pages: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sample in held.samples:
        model, _, what = sample.labels["what"].partition(".")
        pages[model][what.rpartition(".")[2]] += sample.value
    made = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Pages used, of all", labels=["model_name"])
    for model, counts in pages.items():
        if counts["pages"]:
            made.add_metric([model], counts["pages_used"] / counts["pages"])
    return made
