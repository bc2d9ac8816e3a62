"""What one client saw of one answer, as plain values. What follows from it is computed in `figures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

OVERLOADED_STATUSES = (429, 503)
"""How a server says that it has too much to do."""
SKIPPED = "skipped"
"""The error of a robot's tick at which it still waited for the answer before."""

ChunkTimes: TypeAlias = list[tuple[float, float]]
"""When each part of an answer came, and how much it was: seconds of sound, or else a number of things."""


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are in seconds since its run began."""

    kind: str
    due_at: float
    """When it was to be sent."""
    sent_at: float
    chunks: ChunkTimes = field(default_factory=ChunkTimes)
    ended_at: float = 0.0
    status: int = 0
    """As in HTTP; 0 if no answer came."""
    retry_after: float | None = None
    error: str = ""
    """What went wrong, if the answer is not whole."""
    tokens: int = 0
    """How many tokens of text were written, if the server says."""
    audio_input_s: float = 0.0
    """How long the sound was that came with the request."""

    @property
    def is_rejected(self) -> bool:
        """Whether the server had too much to do."""
        return self.status in OVERLOADED_STATUSES

    @property
    def is_complete(self) -> bool:
        """Whether the answer came, to its end."""
        return not self.error

    @property
    def is_failed(self) -> bool:
        """Whether something went wrong that is not a matter of load."""
        return bool(self.error) and not self.is_rejected and self.error != SKIPPED

    @property
    def duration_s(self) -> float:
        """How long it took in all."""
        return self.ended_at - self.sent_at

    @property
    def time_to_first_s(self) -> float:
        """How long it took until the first part was there. It has one if it is whole."""
        return self.chunks[0][0] - self.sent_at

    @property
    def amount(self) -> float:
        """How much came."""
        return sum(amount for _, amount in self.chunks)


@dataclass(frozen=True, slots=True)
class SloTarget:
    """What a client wants of an answer, in seconds; what is None does not matter to it."""

    first: float | None = None
    """The first part comes within so much."""
    total: float | None = None
    """The last part comes within so much."""
    continuity: float | None = None
    """No chunk of sound comes later than its player needs it, give or take so much."""
    itl: float | None = None
    """Parts come, on average, so much apart."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What clients saw under one load."""

    load: float
    """Clients, requests a second, or robots where there is nobody else."""
    unit: str
    """Which of them: `clients`, `req/s`, `robots`."""
    records: list[RequestRecord]
    cpu_s: float
    """What the load generator itself computed."""
    window_s: float = 0.0
    """For how long requests were to be sent, if that was said."""

    def seconds(self, kind: str = "") -> float:
        """How long requests were sent, or until the last answer came: of one kind, or of all."""
        ends = [one.ended_at for one in self.records if kind in ("", one.kind)]
        return max([*ends, *(one.due_at for one in self.records), self.window_s, 1e-9])


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """After how many seconds to come again, if a server says so in seconds."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if (told := headers.get(name, "")).replace(".", "", 1).isdigit():
            return float(told) / scale
    return None
