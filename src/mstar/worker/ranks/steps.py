"""Steps that rank 0 sends to the other ranks of its worker. They are plain data.

Every rank executes the same steps in the same order, so that all have the same states and pages, and each collective
operation of one rank meets that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StateNumber:
    """A state in the arguments of a batch."""

    number: int


@dataclass(frozen=True, slots=True)
class MakeState:
    """Create a state."""

    state: int
    component: str
    kind: str
    tenant: str


@dataclass(frozen=True, slots=True)
class LoadState:
    """Create a state from an export."""

    state: int
    component: str
    kind: str
    exported: Any
    tenant: str | None


@dataclass(frozen=True, slots=True)
class ForkState:
    """Fork a state."""

    state: int
    fork: int


@dataclass(frozen=True, slots=True)
class FreeStates:
    """Forget states."""

    states: list[int]


@dataclass(frozen=True, slots=True)
class ExportState:
    """Take part in the export of a state."""

    state: int


@dataclass(frozen=True, slots=True)
class EvictState:
    """Evict a state."""

    state: int


@dataclass(frozen=True, slots=True)
class RestoreState:
    """Restore an evicted state."""

    state: int


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run a batch of an op."""

    component: str
    op: str
    columns: dict[str, list[Any]]
    count: int
    unfinished: list[int]
    states: list[int]
    changing: list[int]
    is_checked: bool


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The last step failed on rank 0 with this error. It must have failed on the others too, which confirm that."""

    error: str


Step = MakeState | LoadState | ForkState | FreeStates | ExportState | EvictState | RestoreState | RunBatch | StepFailed
