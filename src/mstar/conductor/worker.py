"""A live process of a worker as the conductor knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar.conductor.requests import Request
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
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    """By id, the requests that run on it or have a state there. Some may no longer."""
    unchecked: dict[str, Request] = field(default_factory=dict[str, Request])
    """While it is unresponsive, the requests whose walks were placed since the last check whether they can move."""
    checked_fleet: tuple[object, ...] = ()
    """State of the fleet at that check."""

    def forget(self, rid: str) -> None:
        """Drop a request that has nothing here any more."""
        self.requests.pop(rid, None)
        self.unchecked.pop(rid, None)

    def is_needed(self) -> bool:
        """Return whether a request runs on it or has a state there. Drops from `requests` those that no longer do."""
        unneeded: list[str] = []
        for rid, request in self.requests.items():
            if request.needs(self.peer):
                break
            unneeded.append(rid)
        for rid in unneeded:  # the next walk that is placed here adds it again
            del self.requests[rid]
        return bool(self.requests)
