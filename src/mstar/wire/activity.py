"""What a process tells those who look on, of the last moment: figures, inside messages."""

from __future__ import annotations

import msgspec


class OpActivity(msgspec.Struct, array_like=True):
    """One call of a walk, by its number in program order: what ran of it, for all requests, and what waits."""

    model: str
    walk: str
    call_index: int
    batches: int = 0
    calls: int = 0
    max_batch_size: int = 0
    """How many calls shared the largest batch, of this and of other walks."""
    busy_s: float = 0.0
    """For how many seconds they were computed, each its share."""
    ready_calls: int = 0
    """How many are ready now and do not run."""


class RequestPosition(msgspec.Struct, array_like=True):
    """Where a request is: the call that ran last for it, of the walk with this number."""

    rid: str
    walk_index: int
    call_index: int


class StreamFill(msgspec.Struct, array_like=True):
    """How full a stream of a walk is that is read here."""

    model: str
    walk: str
    stream: str
    items: int
    """How many items wait in the fullest of them."""
    capacity: int
    """How many may."""
    requests: int
    """How many requests have such a stream here."""


class TransferCount(msgspec.Struct, array_like=True):
    """What went to one other worker."""

    to: str
    count: int = 0
    seconds: float = 0.0
    """From when it was to go to when it went."""


class RequestStatus(msgspec.Struct, array_like=True):
    """A request that is under way."""

    rid: str
    model: str
    state: str
    """queued, waiting (for a worker), running or awaiting_input."""
    walk: str
    walk_index: int
    """How many walks of it came before that one."""
    attempt: int
    """How often it was tried, this time with it."""
    seats: tuple[str, ...]
    """The workers that run it."""
    age_s: float
    """For how many seconds it is known."""


class WorkerActivity(msgspec.Struct, array_like=True):
    """A worker that is there."""

    name: str
    incarnation: int
    state: str
    """up or draining."""
    utilization: float = -1.0
    """How much of all that it can do streams with a clock need; below 0 if that is not known."""
