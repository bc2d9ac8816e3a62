"""CPU cost of a generated token and of a request, by process, over the last minute.

The cost of a process is the growth of its CPU time divided by the growth of `mstar_generation_tokens_total`, or of
`mstar_responses_total` for a request, at all front ends. A query to Prometheus gives the same figures over any time
(docs/operate.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.registry import Collector

from mstar.server.telemetry.metrics import Metrics
from mstar.wire.stats import MetricFamily

MAX_INTERVALS = 6
"""Intervals of the history that the figures cover."""


@dataclass(frozen=True, slots=True)
class CpuTotals:
    """Counters at one moment."""

    taken_at: float
    tokens: float
    requests: float
    cpu_us: Mapping[str, int]
    """By process."""
    op_cpu_us: Mapping[str, int]
    """The part inside ops, by worker."""


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """CPU cost at one process. None where no token was generated, no request finished, or the process runs no ops."""

    process: str
    role: str
    cores: float
    """CPU seconds per second."""
    op_share: float | None
    """Fraction inside ops, which is the computation of the model. The rest is bookkeeping."""
    cpu_s_per_token: float | None
    cpu_s_per_request: float | None


class ProcessCosts:
    """The last samples of CPU times, and the costs between them."""

    def __init__(self, metrics: Metrics, others: Callable[[], Iterable[MetricFamily]] = tuple) -> None:
        """`others` returns the last metrics of other front ends."""
        self._metrics = metrics
        self._others = others
        self._samples: deque[CpuTotals] = deque(maxlen=MAX_INTERVALS + 1)

    def sample(self, now: float) -> None:
        """Add the counters of this moment."""
        metrics, processes = self._metrics, self._metrics.processes
        tokens, requests = (
            sum(value for _, value in read_series(counter, self._others(), "_total"))
            for counter in (metrics.generation_tokens, metrics.responses)
        )
        cpu_us, op_cpu_us = processes.by_process("cpu_us"), processes.by_process("op_cpu_us")
        self._samples.append(CpuTotals(now, tokens, requests, cpu_us, op_cpu_us))

    def restart(self) -> None:
        """Drop the samples: the counters of the next one include more processes."""
        self._samples.clear()

    def costs(self) -> list[ProcessCost]:
        """The costs of every process; empty before the end of the first interval."""
        samples = [*self._samples]
        if len(samples) < 2 or samples[0].taken_at == samples[-1].taken_at:
            return []
        first, last = samples[0], samples[-1]
        seconds = last.taken_at - first.taken_at
        tokens, requests = _growth([one.tokens for one in samples]), _growth([one.requests for one in samples])
        roles = self._metrics.processes.roles
        costs: list[ProcessCost] = []
        for process in last.cpu_us.keys() & roles.keys():  # without those that were removed since
            cpu_s = _growth_s([one.cpu_us.get(process) for one in samples])
            op_cpu_s = _growth_s([one.op_cpu_us.get(process) for one in samples])
            op_share = min(1.0, op_cpu_s / cpu_s) if process in last.op_cpu_us and cpu_s else None
            per_token, per_request = cpu_s / tokens if tokens else None, cpu_s / requests if requests else None
            costs.append(ProcessCost(process, roles[process], cpu_s / seconds, op_share, per_token, per_request))
        return sorted(costs, key=lambda one: (one.role, one.process))


def read_series(
    metric: Collector, others: Iterable[MetricFamily], suffix: str
) -> list[tuple[Mapping[str, str], float]]:
    """Labels and values of the series of a metric with this end of their name, here and at other front ends."""
    own = [*metric.collect()]
    names = {family.name for family in own}
    series = [(one.name, one.labels, one.value) for family in own for one in family.samples]
    for family in others:
        series += family.samples if family.name in names else ()
    return [(labels, value) for name, labels, value in series if name.endswith(suffix)]


def _growth(counts: Sequence[float]) -> float:
    """Growth of a sum of counters. An interval in which another front end was restarted counts as empty."""
    return sum(max(0.0, after - before) for before, after in pairwise(counts))


def _growth_s(counts_us: Sequence[int | None]) -> float:
    """Growth of a CPU time in seconds. As in Prometheus, a restarted process counts from zero."""
    growth_us = 0
    for before, after in pairwise(counts_us):
        if before is not None and after is not None:
            growth_us += after - before if after >= before else after
    return growth_us / 1e6
