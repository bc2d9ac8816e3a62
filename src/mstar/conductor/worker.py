"""A live process of a worker as the conductor knows it."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.wire.messages import Peer


@dataclass(eq=False, slots=True)
class Worker:
    """One incarnation of a process that has registered as a worker."""

    peer: Peer
    last_alive_at: float
    """Time of the last sign of life, including reports of the launcher."""
    last_message_at: float
    """Time of the last message from the worker itself."""
    weights_version: int = 0
    """Version of the weights it has loaded."""
    draining_since: float | None = None
    """Time since which it takes no new requests; None while it serves."""
    running_walks: int = 0
    """Number of walks with a seat on it."""
    is_responsive: bool = True
    """Whether there was a sign of life within the heartbeat timeout."""
    batch_expected_s: float = 0.0
    """Predicted duration of its current batch; 0 if unknown."""
