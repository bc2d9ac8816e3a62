"""Metrics of several front ends on one page: every series of a front end gets the label `frontend`.

They are not added up. A front end that restarts begins at zero, and Prometheus reads a sum that falls as a reset of all
front ends. Metrics of the deployment, such as those of worker processes, are the same at every front end and have no
such label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from mstar.server.telemetry.metrics import Metrics
from mstar.wire.queries import ALL_METRICS
from mstar.wire.stats import MetricFamily

LABEL = "frontend"
_DEPLOYMENT_NAMES = frozenset({"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"})
"""Metrics of the deployment under vLLM's names. The others come from `Metrics.processes`."""


def export_families(metrics: Metrics, names: tuple[str, ...]) -> list[MetricFamily]:
    """Series of a front end with these names, for another one."""
    own = _split(metrics)[0] if names == ALL_METRICS else metrics.registry.restricted_registry(names).collect()
    return [
        MetricFamily(
            family.name,
            family.documentation,
            family.type,
            [(sample.name, dict(sample.labels), sample.value) for sample in family.samples],
        )
        for family in own
    ]


def merge_families(metrics: Metrics, name: str, others: Mapping[str, Iterable[MetricFamily]]) -> Iterator[Metric]:
    """The metrics of a front end with this name, of others by their names, and of the deployment."""
    own, of_deployment = _split(metrics)
    merged: dict[str, Metric] = {}
    for family in own:
        target = merged[family.name] = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            target.add_sample(sample.name, {**sample.labels, LABEL: name}, sample.value)
    for other, families in others.items():
        for family in families:
            target = merged.setdefault(family.name, Metric(family.name, family.text, family.type))
            for sample_name, labels, value in family.samples:
                target.add_sample(sample_name, {**labels, LABEL: other}, value)
    yield from merged.values()
    yield from of_deployment


def _split(metrics: Metrics) -> tuple[list[Metric], list[Metric]]:
    """The metrics of a front end, and those of the deployment."""
    names = _DEPLOYMENT_NAMES | {family.name for family in metrics.processes.collect()}
    families = [*metrics.registry.collect()]
    return [one for one in families if one.name not in names], [one for one in families if one.name in names]
