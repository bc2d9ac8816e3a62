"""Live activity records: what a process did since the previous poll, for dashboards.

They are fields of `queries.ActivityReply`. No decision depends on them.
"""

from __future__ import annotations

import msgspec


class OpActivity(msgspec.Struct, array_like=True):
    """Activity of one call of a walk, over all requests. `call_index` counts calls in program order."""

    model: str
    walk: str
    call_index: int
    batches: int = 0
    calls: int = 0
    max_batch_size: int = 0
    """Number of calls in the largest batch, calls of other walks included."""
    busy_s: float = 0.0
    """Compute time in seconds. A batch is shared equally among its calls."""
    ready_calls: int = 0
    """Number of calls that are ready and not running."""


class RequestPosition(msgspec.Struct, array_like=True):
    """Position of a request: the last call that ran, and the index of its walk."""

    rid: str
    walk_index: int
    call_index: int


class StreamFill(msgspec.Struct, array_like=True):
    """Fill level of a stream between partitions that this worker reads."""

    model: str
    walk: str
    stream: str
    items: int
    """Number of items in the fullest instance of the stream."""
    capacity: int
    """Maximum number of items before the writer blocks (backpressure)."""
    requests: int
    """Number of requests with this stream at this worker."""


class TransferCount(msgspec.Struct, array_like=True):
    """Transfers to one other worker."""

    to: str
    count: int = 0
    seconds: float = 0.0
    """Total seconds between ready to send and sent."""


class RequestStatus(msgspec.Struct, array_like=True):
    """Status of a request in progress."""

    rid: str
    model: str
    state: str
    """queued, waiting (for a worker), running or awaiting_input."""
    walk: str
    walk_index: int
    """Number of earlier walks of this request."""
    attempt: int
    """Number of attempts, this one included."""
    seats: tuple[str, ...]
    """Workers that run the current walk, by partition."""
    age_s: float
    """Seconds since it was submitted."""


class WorkerActivity(msgspec.Struct, array_like=True):
    """Status of a registered worker."""

    name: str
    incarnation: int
    state: str
    """up or draining."""
    utilization: float = -1.0
    """Share of its capacity that real-time streams need; negative if unknown."""
