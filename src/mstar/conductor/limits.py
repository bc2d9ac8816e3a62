"""Limits and timeouts of one conductor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConductorLimits:
    """Limits on requests, retries and workers."""

    max_running_requests: int = 1024
    """Maximum requests running at a time."""
    max_queued_requests: int = 256
    """Maximum requests waiting in the queue."""
    max_retries: int = 20
    """Maximum retries of one request after lost workers."""
    worker_wait_s: float = 30.0
    """Seconds a walk waits for a worker before its request fails; longer while a worker starts."""
    heartbeat_timeout_s: float = 1.1
    """Seconds without a sign of life before a worker is unresponsive: its requests move to other workers."""
    scale_down_delay_s: float = 5.0
    """Seconds a replica must be surplus before it drains: load comes in waves."""
    drain_timeout_s: float = 30.0
    """Seconds a walk can keep running on a draining worker before it is retried elsewhere."""
    has_fixed_workers: bool = False
    """Whether workers can be neither started nor stopped, as in an in-process deployment."""
    can_start_successors: bool = False
    """Whether the launcher can start the successor of a worker beside it, as on a single host."""


@dataclass(frozen=True, slots=True)
class HeartbeatTuning:
    """Timing of failure detection."""

    interval_s: float = 0.2
    """Seconds between heartbeats to workers."""
    compute_grace_s: float = 60.0
    """Seconds for which CPU use of a silent worker is a sign of life: a call can hold the interpreter lock."""
    progress_timeout_s: float = 120.0
    """Seconds of one batch, or of silence, before a worker that has not exited is killed. Its weights have to be loaded
    again, which can take longer than the pause of a host."""
    progress_timeout_batches: float = 10.0
    """The same limit in predicted durations of the current batch; the longer one counts."""
    second_look_s: float = 1.0
    """Minimum seconds between two kills of silent workers: several that fall silent together can share a cause."""
