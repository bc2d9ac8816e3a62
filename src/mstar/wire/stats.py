"""What processes tell each other of what they did and have to do: figures, inside messages."""

from __future__ import annotations

import msgspec


class WalkStats(msgspec.Struct, array_like=True):
    """What calls of one op from one walk came to, since the process began."""

    calls: int = 0
    busy_s: float = 0.0
    """A batch's seconds are shared equally among its calls."""
    wait_s: float = 0.0
    """For how many seconds they were ready and did not run."""


class OpTotals(msgspec.Struct, array_like=True):
    """What one op came to, since the process began: how many batches, and the calls of each walk."""

    model: str
    component: str
    op: str
    batches: int = 0
    walks: dict[str, WalkStats] = {}
    batched_calls: int = 0
    """How many calls were in those batches; a call that is run in pieces is in several."""


class DeadlineStats(msgspec.Struct, array_like=True):
    """What emissions of one kind came to that were due at some time, since the process began."""

    model: str
    kind: str
    count: int = 0
    misses: int = 0
    lateness_s: float = 0.0
    """By how many seconds the late ones were late, in all."""
    predictions: int = 0
    """How many first ones were forecast."""
    relative_error: float = 0.0
    """By which part of the time that they took the forecasts were wrong, in all."""
    within_25pct: int = 0
    """How many were wrong by no more than a quarter."""


class Span(msgspec.Struct, array_like=True):
    """Something that went on for a while for one request. Times are of the process's own clock, in seconds.

    What is done many times is one span: from its first start to its last end, with how often it was done.
    """

    kind: str
    """queued, attempt or walk of a conductor; op or transfer of a worker."""
    name: str
    walk: str
    """Of which walk."""
    walk_index: int
    """How many walks of the request came before that one."""
    attempt: int
    start: float
    end: float
    """Infinite while it goes on."""
    calls: int = 0
    busy_s: float = 0.0
    """For how many seconds it was computed, with others in its batches."""
    wait_s: float = 0.0
    """For how many seconds its calls were ready and did not run, or it had no worker."""
    max_batch_size: int = 0
    """The size of its largest batch."""
    detail: str = ""
    """Who took part, or why it was needed."""


class StreamDemand(msgspec.Struct, array_like=True):
    """What one more stream of a model would need of a worker, as parts of all that it can do, and in seconds."""

    solo_utilization: float
    """What one stream needs that has it to itself; more than 1 if it cannot keep up even then."""
    added_utilization: float
    """What it needs beside those that are there."""
    first_output_s: float
    """How many seconds of work come before its first emission, beside those that wait for theirs."""
    per_concurrent_s: float
    """How many seconds more for each other one that comes at the same time."""


class WorkerLoad(msgspec.Struct, array_like=True):
    """How much a worker has to do so that no stream runs dry: 1 is all that it can."""

    utilization: float
    demands: dict[str, StreamDemand]
    """By model, of those that are known."""
    queued_batches: int = 0
    """How many batches it would take to run all calls that are ready and wait, of those that have no clock."""
    deadline_misses: int = 0
    """How many emissions were late, since the process began."""
