"""What a client is promised: when it gets the first of its answer, and how fast it plays, reads or acts on the rest.

Here is what a promise says, and when by it the next emission is due. Who keeps promises is decided by others: workers
by what they run next, conductors by whom they take on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

SOON = 1.0
"""Within so many seconds the first emission should come, if nobody says when."""
CLOCKED = frozenset({"Audio", "Video", "Action"})
"""Kinds with a clock."""


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """What one request is promised. Sound, film and a robot's actions have a clock of their own."""

    first_s: float | None = None
    """The first emission comes within so many seconds; None: soon, and who asks is not turned away for it."""
    is_batch: bool = False
    """Nothing is promised: it gets what others leave."""
    weight: float = 1.0
    """How much of what is left its key gets, against other keys."""
    read: float = 0.0
    """How many tokens of text a second the client reads; 0: text has no clock."""

    @property
    def soon(self) -> float:
        """In how many seconds the first emission should be there."""
        return SOON if self.first_s is None else self.first_s


class Playing:
    """A client's player for one kind of emission: when it will have nothing left to play."""

    __slots__ = ("due", "is_begun", "lasts")

    def __init__(self, due: float, *, is_begun: bool = False) -> None:
        self.due = due
        """When the next emission has to be there."""
        self.is_begun = is_begun
        self.lasts = 0.0
        """For how many seconds the newest emission plays."""

    def take(self, now: float, seconds: float | None) -> float:
        """An emission that plays for so many seconds; by how many seconds it came too late, or (below 0) early.

        After one without a clock (None) nothing more is due.
        """
        late = now - self.due
        start = max(now, self.due) if self.is_begun else now
        self.due = inf if seconds is None else start + seconds
        self.is_begun, self.lasts = True, seconds or 0.0
        return late


def seconds_of(kind: str, value: Any, clock: Mapping[str, float], pace: Pace) -> float | None:
    """For how long an emission keeps its client busy; None for what has no clock."""
    if kind == "Text" and pace.read:
        return _size(value, 0) / pace.read
    if kind == "Audio":
        return _size(value, -1) / clock["rate"]
    if kind == "Video":
        return _size(value, 0) / clock["fps"]
    if kind == "Action":
        return _size(value, 0) / clock["rate"]
    return None


def is_due(kind: str, pace: Pace) -> bool:
    """Whether a client waits for emissions of a kind at their own times, or was told when the first will come."""
    if pace.is_batch:
        return False
    return kind in CLOCKED or pace.first_s is not None or (kind == "Text" and pace.read > 0)


def _size(value: Any, axis: int) -> int:
    """How much there is along an axis; 1 of a single thing."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else 1
    return int(shape[axis]) if len(shape) else 1
