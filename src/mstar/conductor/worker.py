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
    former_requests: dict[str, Request] = field(default_factory=dict[str, Request])
    """By id, the requests that no longer do, but whose attempt it has not been told to release."""
    unchecked: dict[str, Request] = field(default_factory=dict[str, Request])
    """While it is unresponsive, the requests whose walks were placed since the last check whether they can move."""
    checked_fleet: tuple[object, ...] = ()
    """State of the fleet at that check."""

    def add(self, request: Request) -> None:
        """Add a request of which a walk starts here."""
        self.requests[request.rid] = request
        self.former_requests.pop(request.rid, None)

    def forget(self, rid: str) -> None:
        """Drop a request that has nothing here any more."""
        self.requests.pop(rid, None)
        self.former_requests.pop(rid, None)
        self.unchecked.pop(rid, None)

    def all_requests(self) -> dict[str, Request]:
        """Return all requests that the conductor knows to have something here. Some may have ended."""
        return self.former_requests | self.unchecked | self.requests

    def is_needed(self) -> bool:
        """Return whether a request runs on it or has a state there. Those that no longer do become former requests."""
        unneeded: list[str] = []
        for rid, request in self.requests.items():
            if request.needs(self.peer):
                break
            unneeded.append(rid)
        for rid in unneeded:  # the next walk that is placed here adds it again
            self.former_requests[rid] = self.requests.pop(rid)
        return bool(self.requests)
