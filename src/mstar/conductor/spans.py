"""What each request did at the conductor: when it waited, what was tried and why again, and which walks ran where.

What its ops did is known to workers. Nothing is decided by this, and nothing is sent (see `wire.recent`).
"""

from __future__ import annotations

from math import inf

from mstar.conductor.requests import Request
from mstar.wire.span_buffer import SpanBuffer
from mstar.wire.stats import Span


class RequestSpans(SpanBuffer):
    """The spans of requests at one conductor. Each kind of span has at most one open for a request."""

    def on_queued(self, rid: str) -> None:
        """A request waits for its turn."""
        self.spans(rid).append(Span("queued", "queued", "", 0, 0, self.now, inf))

    def on_attempt(self, request: Request, reason: str = "") -> None:
        """A request is tried; a second time because something was lost."""
        self._close(request.rid, "queued", "walk", "attempt")
        span = Span("attempt", "attempt", "", request.walk_count, request.attempt, self.now, inf, detail=reason)
        self.spans(request.rid).append(span)

    def on_walk_started(self, request: Request) -> None:
        """Workers were found for the walk that is to run."""
        tour = request.walk_run
        assert tour is not None
        seats = ", ".join(str(peer) for peer in tour.seats)
        span = Span(
            "walk", tour.call.name, tour.call.name, tour.number, request.attempt, tour.waiting_since, inf, detail=seats
        )
        span.wait_s = self.now - tour.waiting_since
        self.spans(request.rid).append(span)

    def on_walk_finished(self, rid: str) -> None:
        """The walk that ran has come to its end."""
        self._close(rid, "walk")

    def on_finished(self, rid: str) -> None:
        """A request is over."""
        self._close(rid, "queued", "walk", "attempt")
        self.finish(rid)

    def _close(self, rid: str, *kinds: str) -> None:
        for span in self.spans(rid):
            if span.end == inf and span.kind in kinds:
                span.end = self.now
