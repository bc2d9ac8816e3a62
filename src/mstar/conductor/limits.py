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
    """Seconds a walk waits for a worker before its request fails."""
    heartbeat_timeout_s: float = 1.1
    """Seconds without a message before a worker is killed. A live worker sends heartbeats from a thread of its own."""
    scale_down_delay_s: float = 5.0
    """Seconds a replica must be surplus before it drains: load comes in waves."""
    drain_timeout_s: float = 30.0
    """Seconds a walk can keep running on a draining worker before it is retried elsewhere."""
    has_fixed_workers: bool = False
    """Whether workers can be neither started nor stopped, as in an in-process deployment."""


@dataclass(frozen=True, slots=True)
class HeartbeatTuning:
    """Timing of failure detection."""

    interval_s: float = 0.2
    """Seconds between heartbeats to workers."""
    compute_grace_s: float = 60.0
    """Seconds a worker that the launcher reports as computing can be silent: a call can hold the interpreter lock."""
    batch_timeout_s: float = 120.0
    """Maximum seconds of one batch before its worker is killed."""
