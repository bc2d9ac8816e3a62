"""What front ends ask of other processes for those who look on, and the answers. Nothing is decided by them."""

from __future__ import annotations

from mstar.wire.activity import OpActivity, RequestPosition, RequestStatus, StreamFill, TransferCount, WorkerActivity
from mstar.wire.message import Message
from mstar.wire.stats import DeadlineStats, OpTotals, Span


class StatsQuery(Message):
    """What do you hold?"""

    correlation_id: int


class StatsReply(Message):
    """What I hold, counted."""

    correlation_id: int
    counts: dict[str, int]
    ops: list[OpTotals] = []
    """Of a worker: what its ops came to."""
    deadlines: list[DeadlineStats] = []
    """Of a worker: what its emissions came to."""


class SpansQuery(Message):
    """What did this request do, and when?"""

    correlation_id: int
    rid: str


class SpansReply(Message):
    """What it did here. `clock` is the time of day when this process's clock was 0, so that hosts can be compared."""

    correlation_id: int
    clock_offset: float
    spans: list[Span]


class ModelStatusQuery(Message):
    """Which models are up, and which rest?"""

    correlation_id: int


class ModelStatusReply(Message):
    """How models are: up, loading or resting."""

    correlation_id: int
    states: dict[str, str]
    reason: str = ""
    """Why what was asked for is not done, if it is not."""


class ActivityQuery(Message):
    """What happened since I last asked? Who has not asked for a while is taken to look on no more."""

    correlation_id: int


class ActivityReply(Message):
    """What happened here, and how things are now."""

    correlation_id: int
    counts: dict[str, int] = {}
    """Of a worker: what it holds."""
    slack_s: float = -1.0
    """Of a worker: in how many seconds the most urgent that waits is due; below 0 if nothing is."""
    ops: list[OpActivity] = []
    """Of a worker: the calls that ran, and those that wait."""
    positions: list[RequestPosition] = []
    """Of a worker: where in their walks requests are."""
    streams: list[StreamFill] = []
    """Of a worker: how full the streams are."""
    transfers: list[TransferCount] = []
    """Of a worker: what it sent to others."""
    requests: list[RequestStatus] = []
    """Of a conductor: those that are under way, the newest."""
    workers: list[WorkerActivity] = []
    """Of a conductor: those that are there."""
    queue_length: int = 0
    """Of a conductor: how many requests wait for their turn."""
