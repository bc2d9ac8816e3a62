"""Bounded buffer of request spans for tracing: all running requests and a ring of recently finished ones.

It only records and answers `SpansQuery`. Export to OpenTelemetry is in `server.telemetry`.
"""

from __future__ import annotations

from collections import deque
from math import inf
from time import monotonic, time

from msgspec.structs import replace

from mstar.wire.messages import SpansQuery, SpansReply
from mstar.wire.stats import Span

MAX_FINISHED_REQUESTS = 256
"""Maximum number of finished requests kept; the oldest is dropped first."""
MAX_SPANS_PER_REQUEST = 256
"""Maximum number of spans kept per request, the newest ones: a session can last for days."""
CLOCK_SAMPLES = 5
"""Number of paired clock readings. The tightest pair counts: the process can be descheduled between two reads."""


class SpanBuffer:
    """Spans by request. The owner sets `now` at each of its steps."""

    def __init__(self) -> None:
        self.now = -inf
        self._running: dict[str, deque[Span]] = {}
        self._finished: dict[str, deque[Span]] = {}

    def spans(self, rid: str) -> deque[Span]:
        """Mutable spans of a running request. Spans of earlier attempts are kept."""
        spans = self._running.get(rid)
        if spans is None:
            spans = self._running[rid] = self._finished.pop(rid, None) or deque(maxlen=MAX_SPANS_PER_REQUEST)
        return spans

    def finish(self, rid: str) -> None:
        """Move a request to the finished ones."""
        spans = self._running.pop(rid, None)
        if spans is not None:
            self._finished[rid] = spans
            if len(self._finished) > MAX_FINISHED_REQUESTS:
                del self._finished[next(iter(self._finished))]

    def snapshot(self, now: float, rid: str) -> list[Span]:
        """Spans of a request. Open spans are reported as ending now."""
        spans = self._running.get(rid) or self._finished.get(rid) or ()
        return [replace(span, end=now if span.end == inf else span.end) for span in spans]


def reply_to_query(query: SpansQuery, buffer: SpanBuffer) -> SpansReply:
    """Reply to a spans query, with the clock offset of this process."""
    now = monotonic()
    return SpansReply(query.correlation_id, measure_clock_offset(), buffer.snapshot(now, query.rid))


def measure_clock_offset() -> float:
    """Wall-clock time at which the monotonic clock of this process was 0, to align spans of several hosts."""
    pairs: list[tuple[float, float]] = []
    for _ in range(CLOCK_SAMPLES):
        before, wall, after = monotonic(), time(), monotonic()
        pairs.append((after - before, wall - (before + after) / 2))
    return min(pairs)[1]
