"""What a client is promised: when it gets the first of its answer, and how fast it plays, reads or acts on the rest.

Here is what a promise says, and when by it the next emission is due. Who keeps promises is decided by others: workers
by what they run next, conductors by whom they take on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

DEFAULT_TTFT_S = 1.0
"""Within so many seconds the first emission should come, if nobody says when."""
REALTIME_KINDS = frozenset({"Audio", "Video", "Action"})
"""Kinds with a clock."""


class Slo(msgspec.Struct, frozen=True, array_like=True):
    """What one request is promised. Sound, film and a robot's actions have a clock of their own."""

    ttft_s: float | None = None
    """The first emission comes within so many seconds; None: soon, and who asks is not turned away for it."""
    best_effort: bool = False
    """Nothing is promised: it gets what others leave."""
    weight: float = 1.0
    """How much of what is left its key gets, against other keys."""
    tokens_per_s: float = 0.0
    """How many tokens of text a second the client reads; 0: text has no clock."""

    @property
    def ttft_target_s(self) -> float:
        """In how many seconds the first emission should be there."""
        return DEFAULT_TTFT_S if self.ttft_s is None else self.ttft_s


class PlaybackClock:
    """A client's player for one kind of emission: when it will have nothing left to play."""

    __slots__ = ("due", "is_started", "last_duration_s")

    def __init__(self, due: float, *, is_started: bool = False) -> None:
        self.due = due
        """When the next emission has to be there."""
        self.is_started = is_started
        self.last_duration_s = 0.0
        """For how many seconds the newest emission plays."""

    def on_emission(self, now: float, duration_s: float | None) -> float:
        """An emission that plays for so many seconds; by how many seconds it came too late, or (below 0) early.

        After one without a clock (None) nothing more is due.
        """
        late = now - self.due
        start = max(now, self.due) if self.is_started else now
        self.due = inf if duration_s is None else start + duration_s
        self.is_started, self.last_duration_s = True, duration_s or 0.0
        return late


def duration_of(kind: str, value: Any, clock: Mapping[str, float], slo: Slo) -> float | None:
    """For how long an emission keeps its client busy; None for what has no clock."""
    if kind == "Text" and slo.tokens_per_s:
        return _length(value, 0) / slo.tokens_per_s
    if kind == "Audio":
        return _length(value, -1) / clock["rate"]
    if kind == "Video":
        return _length(value, 0) / clock["fps"]
    if kind == "Action":
        return _length(value, 0) / clock["rate"]
    return None


def has_deadline(kind: str, slo: Slo) -> bool:
    """Whether a client waits for emissions of a kind at their own times, or was told when the first will come."""
    if slo.best_effort:
        return False
    return kind in REALTIME_KINDS or slo.ttft_s is not None or (kind == "Text" and slo.tokens_per_s > 0)


def _length(value: Any, axis: int) -> int:
    """How much there is along an axis; 1 of a single thing."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else 1
    return int(shape[axis]) if len(shape) else 1
