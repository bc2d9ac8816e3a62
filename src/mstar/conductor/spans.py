"""Trace spans of requests at the conductor: time in the queue, attempts and their reasons, walks and their workers.

Spans of ops are recorded by workers. Nothing is decided from spans and nothing is sent; see `wire.span_buffer`.
"""

from __future__ import annotations

from collections import deque
from math import inf

from mstar.conductor.requests import Request
from mstar.wire.span_buffer import SpanBuffer
from mstar.wire.stats import Span


class RequestSpans(SpanBuffer):
    """Spans of one conductor. A request has at most one open span of each kind."""

    paused_s = 0.0
    """Seconds by which real time is ahead of the conductor's active time."""

    def on_queued(self, rid: str) -> None:
        """Open the span of the time in the queue."""
        self.spans(rid).append(Span("queued", "queued", "", 0, 0, self.now, inf))

    def on_attempt(self, request: Request, reason: str = "") -> None:
        """Open the span of an attempt; `reason` is why it is a retry."""
        spans = self._close(request.rid, "queued", "walk", "attempt")
        spans.append(Span("attempt", "attempt", "", request.walk_count, request.attempt, self.now, inf, detail=reason))

    def on_walk_started(self, request: Request) -> None:
        """Open the span of a walk. It includes the time it waited for workers."""
        run = request.walk_run
        assert run is not None
        seats = ", ".join(str(peer) for peer in run.seats)
        name, since = run.call.name, run.waiting_since + self.paused_s
        span = Span("walk", name, name, run.number, request.attempt, since, inf, detail=seats)
        span.wait_s = self.now - since
        self.spans(request.rid).append(span)

    def on_walk_finished(self, rid: str) -> None:
        """Close the span of the walk."""
        self._close(rid, "walk")

    def on_failed(self, rid: str, reason: str) -> None:
        """Add why the request fails to its attempt."""
        for span in self.spans(rid):
            if span.end == inf and span.kind == "attempt":
                span.detail = f"{span.detail}; {reason}" if span.detail else reason

    def on_finished(self, rid: str) -> None:
        """Close all spans of a request."""
        self._close(rid, "queued", "walk", "attempt")
        self.finish(rid)

    def _close(self, rid: str, *kinds: str) -> deque[Span]:
        """Close the spans of these kinds. Returns all spans of the request."""
        spans = self.spans(rid)
        for span in spans:
            if span.end == inf and span.kind in kinds:
                span.end = self.now
        return spans
