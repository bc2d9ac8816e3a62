"""Events and actions of the worker core, and the references by which it names states.

The engine executes commands in order: a state that one command creates is available to the next, and a fork is taken
before any later command changes the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from mstar.engine.jobs import Job, Result
from mstar.plan.tables import BatchKey
from mstar.wire.message import MessageReceived, SendMessage, Tick
from mstar.wire.messages import Suspect


class StateRef:
    """Reference of the core to a state in the engine. The engine frees the state after the last reference is gone."""

    __slots__ = ("_dropped", "number")

    def __init__(self, number: int, dropped: list[int]) -> None:
        self.number = number
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)


@dataclass(frozen=True, slots=True)
class ExportedState:
    """The content of a state, to be loaded by another worker."""

    component: str
    kind: str
    data: Any


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The engine has run a batch: a result per job, its duration, and the numbers of evicted states."""

    number: int
    results: list[Result]
    seconds: float
    evicted: tuple[int, ...] = ()
    costs: tuple[tuple[int, float], ...] | None = None
    """On a device with events: numbers and seconds of the batches, of this one and earlier ones, that the device has
    finished since the last report. None: the cost of the batch is its duration."""


@dataclass(frozen=True, slots=True)
class ExportFinished:
    """The engine has exported a state, or failed to."""

    ticket: int
    result: ExportedState | Exception | None
    """None if there is nothing to export ahead."""


Event = MessageReceived | BatchFinished | ExportFinished | Tick


# ---------------------------------------------------------------- actions
@dataclass(frozen=True, slots=True)
class CreateState:
    """Create a state."""

    state: int
    model: str
    component: str
    kind: str
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a state."""

    state: int
    copy: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free states that are no longer referenced."""

    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EvictFirst:
    """Evict states before all others when memory runs out, or in the usual order again."""

    states: tuple[int, ...]
    is_first: bool


@dataclass(frozen=True, slots=True)
class Export:
    """Export a state for a worker; the engine reports ExportFinished."""

    state: int
    ticket: int
    to: str
    is_ahead: bool = False
    """Export only a part that does not change any more. The result is None if there is none."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """Create a state from the export of another worker."""

    state: int
    model: str
    exported: ExportedState
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """Keep a part of a state that another worker has exported ahead."""

    model: str
    exported: ExportedState


@dataclass(frozen=True, slots=True)
class Batch:
    """Run calls as one batch; the engine reports BatchFinished."""

    number: int
    model: str
    key: BatchKey
    jobs: list[Job]
    suspects: list[Suspect]
    """Requests of the calls, for the black box."""
    expected_s: float | None
    """Recent duration of such batches in seconds; None before the first."""
    time_limit_s: float = inf
    """Seconds after which a chunked op stops, because another call has no slack left."""


Command = CreateState | Fork | Free | EvictFirst | Export | LoadState | LoadAhead | Batch
"""An action for the engine."""
Action = SendMessage | Command
