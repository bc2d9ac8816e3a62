"""What a worker's core is told, what it wants done, and how it speaks of states it never touches.

Commands for the engine are executed in the order given. So a state made by one is there for the next, and a copy is
taken before whatever changes the original later.
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
    """A state as the core knows it: a number. The engine has the real one, and frees it when nobody refers to it."""

    __slots__ = ("_dropped", "number")

    def __init__(self, number: int, dropped: list[int]) -> None:
        self.number = number
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)


@dataclass(frozen=True, slots=True)
class ExportedState:
    """A state on its way to another worker."""

    component: str
    kind: str
    data: Any


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A batch has run: what came of each job, how long it took, and which states had to make room."""

    number: int
    results: list[Result]
    seconds: float
    evicted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportFinished:
    """A state is ready to go, or could not be exported."""

    ticket: int
    result: ExportedState | Exception


Event = MessageReceived | BatchFinished | ExportFinished | Tick


# ---------------------------------------------------------------- actions
@dataclass(frozen=True, slots=True)
class CreateState:
    """Make a fresh state."""

    state: int
    model: str
    component: str
    kind: str
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Make a copy of a state."""

    state: int
    copy: int


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody refers to these states any more."""

    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """Make a state ready to go; the answer is Exported."""

    state: int
    ticket: int


@dataclass(frozen=True, slots=True)
class LoadState:
    """Make a state of what another worker exported."""

    state: int
    model: str
    exported: ExportedState


@dataclass(frozen=True, slots=True)
class Batch:
    """Run these calls as one; the answer is Ran."""

    number: int
    model: str
    key: BatchKey
    jobs: list[Job]
    suspects: list[Suspect]
    """Whose they are, for the black box."""
    expected_s: float | None
    """How many seconds such a batch has taken lately."""
    time_limit_s: float = inf
    """How many seconds it may take if it can be run in pieces: then somebody else cannot wait any longer."""


Command = CreateState | Fork | Free | Export | LoadState | Batch
"""What the engine does."""
Action = SendMessage | Command
