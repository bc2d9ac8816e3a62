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
class MetricAlias:
    """One of their names, and of which of our samples it is made. Samples that differ in nothing else are added."""

    name: str
    label_names: Mapping[str, str] = field(default_factory=lambda: {"model": "model_name"})
    """What our labels are called."""
    label_filter: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Which values our labels may have."""


_TEXT_ONLY = {"kind": ("Text",)}
_SUCCESS_ONLY = {"reason": ("stop", "length", "tool_calls")}
_QUEUE_ONLY = {"what": ("queue",)}
VLLM_ALIASES: Mapping[str, MetricAlias] = {
    "mstar_responses_in_progress": MetricAlias("vllm:num_requests_running"),
    "mstar_held": MetricAlias("vllm:num_requests_waiting", {}, _QUEUE_ONLY),
    "mstar_request_errors": MetricAlias("vllm:admission_rejections", {}, {"code": ("overloaded",)}),
    "mstar_prompt_tokens": MetricAlias("vllm:prompt_tokens"),
    "mstar_generation_tokens": MetricAlias("vllm:generation_tokens"),
    "mstar_time_to_first_output_seconds": MetricAlias("vllm:time_to_first_token_seconds", label_filter=_TEXT_ONLY),
    "mstar_inter_output_seconds": MetricAlias("vllm:inter_token_latency_seconds", label_filter=_TEXT_ONLY),
    "mstar_response_duration_seconds": MetricAlias("vllm:e2e_request_latency_seconds"),
    "mstar_responses": MetricAlias(
        "vllm:request_success", {"model": "model_name", "reason": "finished_reason"}, _SUCCESS_ONLY
    ),
}
"""By the names of our own figures."""


class VllmMetrics(Collector):
    """Our figures again, under their names."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)

    def describe(self) -> list[Metric]:
        """Nothing: what there is, is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every figure that they have a name for."""
        for family in (family for one in self._collectors for family in one.collect()):
            if family.name == "mstar_held":
                yield _kv_cache_usage(family)
            if (theirs := VLLM_ALIASES.get(family.name)) is not None:
                yield _apply_alias(family, theirs)


def _apply_alias(family: Metric, alias: MetricAlias) -> Metric:
    made = Metric(alias.name, family.documentation, family.type)
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        is_meant = all(sample.labels[label] in values for label, values in alias.label_filter.items())
        if is_meant and not sample.name.endswith("_created"):
            labels = {alias.label_names.get(label, label): value for label, value in sample.labels.items()}
            known = tuple((label, labels[label]) for label in (*alias.label_names.values(), "le") if label in labels)
            sums[alias.name + sample.name.removeprefix(family.name), known] += sample.value
    made.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
    return made


def _kv_cache_usage(held: Metric) -> Metric:
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
