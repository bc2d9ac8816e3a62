"""Statistics inside messages: per-op totals, deadline statistics, metrics, request spans, worker load."""

from __future__ import annotations

import msgspec


class WalkStats(msgspec.Struct, array_like=True):
    """Totals of the calls of one op from one walk, since the process started."""

    calls: int = 0
    busy_s: float = 0.0
    """Compute time. A batch is shared equally among its calls."""
    wait_s: float = 0.0
    """Time between ready and running."""


class OpTotals(msgspec.Struct, array_like=True):
    """Totals of one op since the process started: batches, and calls by walk."""

    model: str
    component: str
    op: str
    batches: int = 0
    walks: dict[str, WalkStats] = {}
    batched_calls: int = 0
    """Number of calls in those batches; a chunked call counts once per batch."""
    running_s: float = 0.0
    """Seconds since the batch that runs now was submitted; 0 without one."""
    lookahead_s: dict[str, float] = {}
    """Compute time of lookaheads in seconds, by outcome: committed, dropped or lost."""


class DeadlineStats(msgspec.Struct, array_like=True):
    """Deadline statistics of the emissions of one kind, since the process started."""

    model: str
    kind: str
    count: int = 0
    misses: int = 0
    lateness_s: float = 0.0
    """Total lateness of missed deadlines, in seconds."""
    predictions: int = 0
    """Number of predictions of the time to first output."""
    relative_error: float = 0.0
    """Sum of the relative prediction errors."""
    within_25pct: int = 0
    """Number of predictions within 25 % of the measured time."""


class MetricFamily(msgspec.Struct, array_like=True):
    """One Prometheus metric with its series."""

    name: str
    text: str
    """Help text."""
    type: str
    samples: list[tuple[str, dict[str, str], float]]
    """Name, labels and value of each series."""


class Span(msgspec.Struct, array_like=True):
    """One span of a request. Times are monotonic seconds of the process.

    Repeated work is one span, from the first start to the last end, with a call count.
    """

    kind: str
    """queued, attempt or walk (conductor); op or transfer (worker)."""
    name: str
    walk: str
    """Name of the walk."""
    walk_index: int
    """Number of earlier walks of the request."""
    attempt: int
    start: float
    end: float
    """Infinite while the span is open."""
    calls: int = 0
    busy_s: float = 0.0
    """Compute time in seconds, shared batches included in full."""
    wait_s: float = 0.0
    """Seconds between ready and running, or without a worker."""
    max_batch_size: int = 0
    """Size of its largest batch."""
    detail: str = ""
    """Participants, or the reason."""


class StreamDemand(msgspec.Struct, array_like=True):
    """Capacity that one more stream of a model needs at a worker."""

    solo_utilization: float
    """Utilization of a stream that has the worker to itself; above 1 if it cannot keep up."""
    added_utilization: float
    """Additional utilization next to the current streams."""
    first_output_s: float
    """Seconds of work before its first emission, next to the requests that wait for theirs."""
    per_concurrent_s: float
    """Additional seconds per request that arrives at the same time."""


class WorkerLoad(msgspec.Struct, array_like=True):
    """Load of a worker, relative to what keeps all streams on time: 1 is full."""

    utilization: float
    demands: dict[str, StreamDemand]
    """Demand of one more stream, by model, where known."""
    queued_batches: int = 0
    """Number of batches needed for all ready calls without a deadline."""
    deadline_misses: int = 0
    """Number of missed deadlines since the process started."""
