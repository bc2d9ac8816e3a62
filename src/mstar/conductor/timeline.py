"""What each request did at the conductor: when it waited, what was tried and why again, and which walks ran where.

What its ops did is known to workers. Nothing is decided by this, and nothing is sent (see `wire.recent`).
"""

from __future__ import annotations

from math import inf

from mstar.conductor.requests import Request
from mstar.wire.figures import Span
from mstar.wire.recent import Recent


class Timeline(Recent):
    """The spans of requests at one conductor. Each kind of span has at most one open for a request."""

    def queued(self, rid: str) -> None:
        """A request waits for its turn."""
        self.spans(rid).append(Span("queued", "queued", "", 0, 0, self.now, inf))

    def tried(self, request: Request, why: str = "") -> None:
        """A request is tried; a second time because something was lost."""
        self._close(request.rid, "queued", "walk", "attempt")
        span = Span("attempt", "attempt", "", request.walks, request.attempt, self.now, inf, text=why)
        self.spans(request.rid).append(span)

    def began(self, request: Request) -> None:
        """Workers were found for the walk that is to run."""
        tour = request.tour
        assert tour is not None
        seats = ", ".join(str(peer) for peer in tour.seats)
        span = Span("walk", tour.call.name, tour.call.name, tour.number, request.attempt, tour.since, inf, text=seats)
        span.waited = self.now - tour.since
        self.spans(request.rid).append(span)

    def arrived(self, rid: str) -> None:
        """The walk that ran has come to its end."""
        self._close(rid, "walk")

    def over(self, rid: str) -> None:
        """A request is over."""
        self._close(rid, "queued", "walk", "attempt")
        self.end(rid)

    def _close(self, rid: str, *kinds: str) -> None:
        for span in self.spans(rid):
            if span.end == inf and span.what in kinds:
                span.end = self.now
