"""Data of a load test: request records, SLOs and load runs. `metrics` computes the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

OVERLOADED_STATUSES = (429, 503)
"""HTTP statuses that mean the server is overloaded."""
SKIPPED = "skipped"
"""Error of a robot's tick that was skipped because the previous response was still missing."""

ChunkTimes: TypeAlias = list[tuple[float, float]]
"""Arrival time and amount of each chunk of a response: seconds of audio, or a count of outputs."""


@dataclass(slots=True)
class RequestRecord:
    """One request as its client observed it. Times are seconds since the start of the run."""

    kind: str
    due_at: float
    """Scheduled time."""
    sent_at: float
    chunks: ChunkTimes = field(default_factory=ChunkTimes)
    ended_at: float = 0.0
    status: int = 0
    """HTTP status. 0: no response."""
    retry_after: float | None = None
    error: str = ""
    """Reason why the response is incomplete. Empty: complete."""
    tokens: int = 0
    """Completion tokens, if the server reports usage."""
    audio_input_s: float = 0.0
    """Duration of the audio in the request, in seconds."""

    @property
    def is_rejected(self) -> bool:
        """Whether the server rejected it because of overload."""
        return self.status in OVERLOADED_STATUSES

    @property
    def is_complete(self) -> bool:
        """Whether the whole response arrived."""
        return not self.error

    @property
    def is_failed(self) -> bool:
        """Whether it failed for another reason than overload."""
        return bool(self.error) and not self.is_rejected and self.error != SKIPPED

    @property
    def duration_s(self) -> float:
        """Seconds from sending to the end of the response."""
        return self.ended_at - self.sent_at

    @property
    def ttft_s(self) -> float:
        """Seconds to the first chunk (time to first token). Requires a complete response."""
        return self.chunks[0][0] - self.sent_at

    @property
    def amount(self) -> float:
        """Total amount received."""
        return sum(amount for _, amount in self.chunks)


@dataclass(frozen=True, slots=True)
class SloTarget:
    """Service level objective of a response, in seconds. None: no objective."""

    ttft: float | None = None
    """Maximum time to first token, or first chunk."""
    total: float | None = None
    """Maximum duration of the whole response."""
    continuity: float | None = None
    """Maximum delay of any audio chunk against its playback time."""
    itl: float | None = None
    """Maximum mean inter-token latency."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Records of one load level."""

    load: float
    """Number of clients, requests per second, or number of robots in a robot-only workload."""
    unit: str
    """Unit of `load`: `clients`, `req/s` or `robots`."""
    records: list[RequestRecord]
    cpu_s: float
    """CPU seconds of the load generator."""
    window_s: float = 0.0
    """Scheduled duration of sending. 0: not limited."""

    def seconds(self, kind: str = "") -> float:
        """Duration of the run up to the last response of `kind`, or of all kinds."""
        ends = [record.ended_at for record in self.records if kind in ("", record.kind)]
        return max([*ends, *(record.due_at for record in self.records), self.window_s, 1e-9])


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait before a retry, from Retry-After headers. None: no such header, or a date."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if (value := headers.get(name, "")).replace(".", "", 1).isdigit():
            return float(value) / scale
    return None
