"""vLLM-compatible metrics: our metrics again under vLLM's names, for dashboards and autoscalers made for vLLM.

They are computed from our own metrics at scrape time, so they cost nothing otherwise. A vLLM metric without an
equivalent here is left out, not approximated.
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
    """A vLLM metric made of one of ours. Samples that become equal in all labels are summed."""

    name: str
    label_names: Mapping[str, str] = field(default_factory=lambda: {"model": "model_name"})
    """vLLM's label name by ours. Other labels are dropped."""
    label_filter: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Allowed values of our labels. Samples with other values are skipped."""


_TEXT_ONLY = {"kind": ("Text",)}
_SUCCESS_ONLY = {"reason": ("stop", "length", "tool_calls")}
VLLM_ALIASES: Mapping[str, MetricAlias] = {
    "mstar_responses_in_progress": MetricAlias("vllm:num_requests_running"),
    "mstar_queue_length": MetricAlias("vllm:num_requests_waiting", {}),
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
"""By the name of our metric."""


class VllmMetrics(Collector):
    """Our metrics under vLLM's names."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)

    def describe(self) -> list[Metric]:
        """Nothing: the metrics are known only at scrape time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every vLLM metric that has an equivalent here."""
        pages: dict[str, Metric] = {}
        for family in (family for collector in self._collectors for family in collector.collect()):
            if family.name in ("mstar_kv_pages", "mstar_kv_pages_used"):
                pages[family.name] = family
            if (alias := VLLM_ALIASES.get(family.name)) is not None:
                yield _apply_alias(family, alias)
        if len(pages) == 2:
            yield _kv_cache_usage(pages["mstar_kv_pages_used"], pages["mstar_kv_pages"])


def _apply_alias(family: Metric, alias: MetricAlias) -> Metric:
    metric = Metric(alias.name, family.documentation, family.type)
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        is_included = all(sample.labels[label] in values for label, values in alias.label_filter.items())
        if is_included and not sample.name.endswith("_created"):
            labels = {alias.label_names.get(label, label): value for label, value in sample.labels.items()}
            kept_labels = tuple(
                (label, labels[label]) for label in (*alias.label_names.values(), "le") if label in labels
            )
            sums[alias.name + sample.name.removeprefix(family.name), kept_labels] += sample.value
    metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
    return metric


def _kv_cache_usage(used: Metric, total: Metric) -> Metric:
    """Share of KV cache pages in use, by model, over all workers."""
    used_pages, pages = _sum_by_model(used), _sum_by_model(total)
    metric = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV cache pages in use, 1 is 100 %", labels=["model_name"])
    for model, count in pages.items():
        if count:
            metric.add_metric([model], used_pages.get(model, 0.0) / count)
    return metric


def _sum_by_model(family: Metric) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for sample in family.samples:
        sums[sample.labels["model"]] += sample.value
    return sums
