"""Latency objectives (SLO) of requests: time to first output (TTFT), and the playback or reading rate after it.

It computes when the next emission is due. Enforcement is elsewhere: workers schedule by slack, conductors admit by
predicted TTFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

DEFAULT_TTFT_S = 1.0
"""Seconds to the first emission that are aimed at if the request has no TTFT target."""
REALTIME_KINDS = frozenset({"Audio", "Video", "Action"})
"""Kinds of emissions that are consumed in real time."""


class Slo(msgspec.Struct, frozen=True, array_like=True):
    """Latency objective of one request. Audio, video and robot actions are real-time in any case."""

    ttft_s: float | None = None
    """Maximum seconds to the first emission. None: best effort, never rejected because of it."""
    best_effort: bool = False
    """No objective: the request runs on spare capacity."""
    weight: float = 1.0
    """Fair-share weight of its API key relative to other keys."""
    tokens_per_s: float = 0.0
    """Reading rate of the client in tokens per second; 0: text has no deadline."""

    @property
    def ttft_target_s(self) -> float:
        """TTFT target in seconds, with the default applied."""
        return DEFAULT_TTFT_S if self.ttft_s is None else self.ttft_s


class PlaybackClock:
    """Playback model of a client for one kind of emission: when its buffer runs dry."""

    __slots__ = ("due", "is_started", "last_duration_s")

    def __init__(self, due: float, *, is_started: bool = False) -> None:
        self.due = due
        """Time at which the next emission is due."""
        self.is_started = is_started
        self.last_duration_s = 0.0
        """Playback duration of the latest emission, in seconds."""

    def on_emission(self, now: float, duration_s: float | None) -> float:
        """Account for an emission that plays for `duration_s`. Returns its lateness in seconds (negative: early).

        After an emission without a duration (None) no further one is due.
        """
        lateness = now - self.due
        start = max(now, self.due) if self.is_started else now
        self.due = inf if duration_s is None else start + duration_s
        self.is_started, self.last_duration_s = True, duration_s or 0.0
        return lateness


def duration_of(kind: str, value: Any, clock: Mapping[str, float], slo: Slo) -> float | None:
    """Playback duration of an emission in seconds; None if its kind is not real-time."""
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
    """Whether emissions of this kind have deadlines under the objective."""
    if slo.best_effort:
        return False
    return kind in REALTIME_KINDS or slo.ttft_s is not None or (kind == "Text" and slo.tokens_per_s > 0)


def _length(value: Any, axis: int) -> int:
    """Length along an axis; 1 for a scalar."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else 1
    return int(shape[axis]) if len(shape) else 1
