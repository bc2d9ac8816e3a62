"""Introspection queries of front ends and their replies: statistics, request spans, model status, live activity.

Queries are read-only: no scheduling or routing decision depends on them.
"""

from __future__ import annotations

from mstar.wire.activity import OpActivity, RequestPosition, RequestStatus, StreamFill, TransferCount, WorkerActivity
from mstar.wire.message import Message
from mstar.wire.stats import DeadlineStats, MetricFamily, OpTotals, Span

ALL_METRICS = ("*",)


class StatsQuery(Message):
    """Request the counters and gauges of a process."""

    correlation_id: int
    metrics: tuple[str, ...] = ()
    """Names of metrics of a front end. ALL_METRICS requests all of them."""


class StatsReply(Message):
    """Counters and gauges of a process."""

    correlation_id: int
    counts: dict[str, int]
    ops: list[OpTotals] = []
    """Workers only: totals per op."""
    deadlines: list[DeadlineStats] = []
    """Workers only: deadline statistics per kind of emission."""
    metrics: list[MetricFamily] = []
    """Front ends only: those of their own metrics that were requested."""


class SpansQuery(Message):
    """Request the spans of one request."""

    correlation_id: int
    rid: str


class SpansReply(Message):
    """Spans of a request at this process. `clock_offset` is the wall-clock time of monotonic time 0, to align hosts."""

    correlation_id: int
    clock_offset: float
    spans: list[Span]


class ModelStatusQuery(Message):
    """Request the load state of all models."""

    correlation_id: int


class ModelStatusReply(Message):
    """Load state of each model: loaded, loading, failing (its workers fail to start) or unloaded."""

    correlation_id: int
    states: dict[str, str]
    reason: str = ""
    """Why a load or unload command was rejected; empty if it was accepted."""


class ActivityQuery(Message):
    """Request the activity since the previous query. A subscription expires when the queries stop."""

    correlation_id: int


class ActivityReply(Message):
    """Activity since the previous query, and the current state."""

    correlation_id: int
    counts: dict[str, int] = {}
    """Workers only: counters and gauges."""
    slack_s: float = -1.0
    """Workers only: seconds until the most urgent ready call is due; negative if none is."""
    ops: list[OpActivity] = []
    """Workers only: calls that ran, and calls that are ready."""
    positions: list[RequestPosition] = []
    """Workers only: positions of requests in their walks."""
    streams: list[StreamFill] = []
    """Workers only: fill levels of streams."""
    transfers: list[TransferCount] = []
    """Workers only: transfers to other workers."""
    requests: list[RequestStatus] = []
    """Conductors only: requests in progress, the newest ones."""
    workers: list[WorkerActivity] = []
    """Conductors only: registered workers."""
    queue_length: int = 0
    """Conductors only: number of queued requests."""
