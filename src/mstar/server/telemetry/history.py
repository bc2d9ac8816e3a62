"""Figures of the server over the last hour, sampled from its metrics: rates, latency, memory, CPU and batch sizes.

Prometheus keeps a longer history. This one needs no other service, so that the first page of the studio has charts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from mstar.server.telemetry.metrics import Metrics
from mstar.server.telemetry.process_costs import ProcessCosts, read_series
from mstar.wire.stats import DeadlineStats, MetricFamily, OpTotals

SAMPLED_SERIES = (
    *("mstar_generation_tokens_total", "mstar_responses_total", "mstar_response_duration_seconds_count"),
    *("mstar_time_to_first_output_seconds_bucket", "mstar_requests_in_progress"),
)
"""Series of other front ends that a sample needs."""
SAMPLE_INTERVAL_S = 10.0
"""Seconds between two samples."""
MAX_SAMPLES = 360
"""Samples of one hour."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of the server at one moment."""

    responses: float
    errors: float
    """Responses that ended with an error. Clients that leave are none."""
    first_outputs: Mapping[float, float]
    """Cumulative number of first outputs by upper bound of their time in seconds, as in a Prometheus histogram."""
    deadlines: int
    misses: int
    batches: int
    batched_calls: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one interval. None where the interval has no observation."""

    at: float
    """End of the interval, in seconds since the epoch."""
    responses_per_s: float
    errors_per_s: float
    ttfo_p50_s: float | None
    ttfo_p99_s: float | None
    on_time: float | None
    """Fraction of emissions with a deadline that met it."""
    batch_size: float | None
    cores: float
    """CPU seconds of all processes per second."""
    memory_bytes: int
    """Resident memory of all processes."""
    running: int
    queued: int


class History:
    """The samples of the last hour."""

    def __init__(
        self,
        metrics: Metrics,
        op_stats: Mapping[str, Iterable[OpTotals]],
        deadline_stats: Mapping[str, Iterable[DeadlineStats]],
        clock: Callable[[], float] = time.monotonic,
        others: Callable[[], Iterable[MetricFamily]] = tuple,
    ) -> None:
        """`others` returns the last metrics of other front ends."""
        self._metrics = metrics
        self._others = others
        self._op_stats = op_stats
        self._deadline_stats = deadline_stats
        self.process_costs = ProcessCosts(metrics, others)
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._last: tuple[float, Totals] | None = None

    def sample(self, running: int) -> None:
        """Add the interval since the last call. The first call only begins one."""
        now, totals = self._clock(), self._totals()
        self.process_costs.sample(now)
        if self._last is not None and now > self._last[0]:
            self._samples.append(self._compare(now - self._last[0], self._last[1], totals, running))
        self._last = (now, totals)

    def restart(self) -> None:
        """Begin a new interval with the next sample: its counters include more processes than those before."""
        self._last = None
        self.process_costs.restart()

    def columns(self) -> dict[str, list[Any]]:
        """The samples, oldest first: one list for each field."""
        rows = [asdict(one) for one in self._samples]
        return {field.name: [row[field.name] for row in rows] for field in fields(Sample)}

    def _totals(self) -> Totals:
        metrics, others = self._metrics, [*self._others()]
        deadlines = [one for stats in self._deadline_stats.values() for one in stats]
        ops = [one for stats in self._op_stats.values() for one in stats]
        first_outputs: dict[float, float] = {}
        for labels, value in read_series(metrics.time_to_first_output, others, "_bucket"):
            bound = float(labels["le"])
            first_outputs[bound] = first_outputs.get(bound, 0.0) + value
        responses = read_series(metrics.responses, others, "_total")
        count = sum(value for _, value in responses)
        cancelled = sum(value for labels, value in responses if labels["reason"] == "cancelled")
        return Totals(
            count,
            count - cancelled - sum(value for _, value in read_series(metrics.response_duration, others, "_count")),
            first_outputs,
            sum(one.count for one in deadlines),
            sum(one.misses for one in deadlines),
            sum(one.batches for one in ops),
            sum(one.batched_calls for one in ops),
            metrics.processes.total("cpu_us") / 1e6,
        )

    def _compare(self, seconds: float, before: Totals, after: Totals, running: int) -> Sample:
        # Counters of a process begin again at zero when it is restarted: such an interval counts as empty.
        deadlines = after.deadlines - before.deadlines
        misses = max(0, after.misses - before.misses)
        batches = after.batches - before.batches
        calls = after.batched_calls - before.batched_calls
        first_outputs = {
            bound: max(0.0, count - before.first_outputs.get(bound, 0.0))
            for bound, count in after.first_outputs.items()
        }
        processes = self._metrics.processes
        return Sample(
            time.time(),
            max(0.0, after.responses - before.responses) / seconds,
            max(0.0, after.errors - before.errors) / seconds,
            quantile(first_outputs, 0.5),
            quantile(first_outputs, 0.99),
            1 - min(misses, deadlines) / deadlines if deadlines > 0 else None,
            calls / batches if batches > 0 and calls > 0 else None,
            max(0.0, after.cpu_s - before.cpu_s) / seconds,
            processes.total("rss_bytes"),
            running,
            processes.total("queue"),
        )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram with cumulative buckets, interpolated within a bucket; None if it is empty."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= share * total:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (share * total - below) / (count - below)
        lower, below = bound, count
    return lower
