"""Messages between the launcher and the other processes: exits, starts and stops, rolling updates, shutdown."""

from __future__ import annotations

from enum import StrEnum

from mstar.wire.message import Message, Peer


class ExitCause(StrEnum):
    """Whether a request that the process was computing can be the cause of its exit."""

    CRASH = "crash"
    """A fault signal, an exit by itself, a kill for lack of memory, or no progress: one of the requests can be the
    cause."""
    UNEXPLAINED = "unexplained"
    """SIGKILL, and it is unknown whether the kernel sent it for lack of memory."""
    EXTERNAL = "external"
    """A signal from outside, a stop, or a lost host: no request is the cause."""


class Suspect(Message):
    """A request of the batch during which a worker crashed, with its number of completed calls of that op."""

    rid: str
    attempt: int
    calls_completed: int


class ProcessExited(Message):
    """A process incarnation has exited."""

    peer: Peer
    reason: str
    suspects: list[Suspect] = []
    failed_starts: int = 0
    """Number of starts in a row, this one included, after which the process was never up."""
    next_start_in_s: float = 0.0
    """Seconds until the launcher starts it again."""
    cause: ExitCause = ExitCause.EXTERNAL


class StillComputing(Message):
    """The process uses CPU time. This is a sign of life of a worker whose heartbeat is late."""

    peer: Peer


class Kill(Message):
    """The process does not respond: kill and restart it."""

    peer: Peer
    reason: str


class StartWorker(Message):
    """Start a worker unless it runs."""

    worker: str
    skip_backoff: bool = False
    """Start it now even if it failed to start and waits for its next attempt."""
    beside: Peer | None = None
    """Process of the worker that still serves: start its successor, unless there is one."""


class StopWorker(Message):
    """Stop a drained worker, and do not restart it until StartWorker."""

    peer: Peer


class RollWeights(Message):
    """Start a rolling update to new weights: new workers load this version, old ones are replaced."""

    weights_version: int


class WeightsRolled(Message):
    """The rolling update is complete: every worker has this version."""

    weights_version: int


class RolloutFailed(Message):
    """The rolling update stopped at a worker that failed to start. The workers of `serving_version` keep serving."""

    weights_version: int
    serving_version: int
    worker: str
    reason: str


class Ready(Message):
    """Every worker of the placement is up. From a front end: it accepts requests."""


class DeploymentReport(Message):
    """State of the deployment, for a front end that is a process of its own. The server layer defines the content."""

    content: bytes


class Drain(Message):
    """Graceful shutdown: reject new requests and reply Drained when the last one has finished."""


class Drained(Message):
    """All requests have finished."""
