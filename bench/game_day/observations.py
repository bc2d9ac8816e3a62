"""What is observed during a game day: requests, probes, processes and faults. All times are seconds of one clock.

The clock starts with the load. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

WHOLE, WRONG, DECLARED, CUT = "whole", "wrong", "declared", "cut"
LEFT, UNANSWERED, PENDING = "left", "unanswered", "pending"
"""Ends of a request: complete and equal to the reference; different from it; a declared error; the connection ended
without either; the client left on purpose; no end before the timeout of the client; still running after the load."""


MIN_PAUSE_S = 5.0
"""Seconds from which on a pause of a response is recorded with its times."""


@dataclass(frozen=True)
class RequestRecord:
    """One request and its end."""

    kind: str
    """What the load sends: chat, speech, count, …"""
    model: str
    tenant: str
    begun: float
    ended: float
    outcome: str
    status: int = 0
    code: str = ""
    """Error code of the response or of the error event."""
    text: str = ""
    """What arrived, shortened."""
    longest_gap_s: float = 0.0
    retry_after_s: float = 0.0
    has_output: bool = False
    """Whether an output arrived before the end."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Start and end of each time of at least `MIN_PAUSE_S` in which nothing arrived."""

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.ended - self.begun

    def overlaps(self, begun: float, ended: float) -> bool:
        """Whether it ran at some time of that interval."""
        return self.begun <= ended and self.ended >= begun


@dataclass(frozen=True)
class Probe:
    """One look at `/health` and `/ready`. A status of 0 means no answer in time."""

    at: float
    health: int
    health_s: float
    ready: int
    phase: str


@dataclass(frozen=True)
class ProcessSample:
    """The processes of the server at one time."""

    at: float
    pids: dict[str, int]
    rss_mb: dict[str, float]


@dataclass(frozen=True)
class FaultRecord:
    """One injected fault."""

    name: str
    target: str
    begun: float
    ended: float
    """When it was undone."""
    note: str = ""
    skipped: str = ""
    """Why it was not injected, or nothing."""


@dataclass(frozen=True)
class Shutdown:
    """The end of the server."""

    begun: float
    seconds: float
    exit_code: int | None
    new_request: RequestRecord
    """A request that was sent after the signal."""
    running: Sequence[RequestRecord]
    """Requests that ran when the signal was sent."""
    left_processes: Sequence[str]
    left_files: Sequence[str]


@dataclass
class Observations:
    """Everything about one game day."""

    seed: int
    minutes: float
    request_timeout_s: float
    load_s: float = 0.0
    """Seconds from the start of the load to its end."""
    start_s: float = 0.0
    """Seconds until the server was ready."""
    requests: list[RequestRecord] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    samples: list[ProcessSample] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    rollouts: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each rolling update."""
    leftovers: dict[str, float] = field(default_factory=dict)
    """Resource counts of `/metrics` that are not 0 after the load."""
    shutdown: Shutdown | None = None

    def injected(self, *names: str) -> list[FaultRecord]:
        """Faults of these names that were injected."""
        return [fault for fault in self.faults if fault.name in names and not fault.skipped]

    def of_kind(self, *kinds: str) -> list[RequestRecord]:
        """Requests of these kinds."""
        return [request for request in self.requests if request.kind in kinds]
