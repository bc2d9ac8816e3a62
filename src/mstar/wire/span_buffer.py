"""The spans of requests: of those that run, and of the last that ended. Bounded in every direction.

It is told what happened and answers when it is asked; nothing is sent, and nothing is decided by it.
"""

from __future__ import annotations

import time
from collections import deque
from math import inf

from msgspec.structs import replace

from mstar.wire.clock import measure_clock_offset
from mstar.wire.messages import SpansQuery, SpansReply
from mstar.wire.stats import Span

MAX_FINISHED_REQUESTS = 256
"""So many requests that ended are remembered."""
MAX_SPANS_PER_REQUEST = 256
"""So many spans of one request are, the newest: a session can go on for days."""


class SpanBuffer:
    """Spans by request. The owner says what time it is at each of its steps."""

    def __init__(self) -> None:
        self.now = -inf
        self._running: dict[str, deque[Span]] = {}
        self._finished: dict[str, deque[Span]] = {}

    def spans(self, rid: str) -> deque[Span]:
        """The spans of a request that runs, to be added to; those of its earlier attempts are among them."""
        found = self._running.get(rid)
        if found is None:
            found = self._running[rid] = self._finished.pop(rid, None) or deque(maxlen=MAX_SPANS_PER_REQUEST)
        return found

    def finish(self, rid: str) -> None:
        """A request is over: it is one of the last that ended."""
        spans = self._running.pop(rid, None)
        if spans is not None:
            self._finished[rid] = spans
            if len(self._finished) > MAX_FINISHED_REQUESTS:
                del self._finished[next(iter(self._finished))]

    def snapshot(self, now: float, rid: str) -> list[Span]:
        """What a request did, as far as it is remembered. What goes on is said to last until now."""
        spans = self._running.get(rid) or self._finished.get(rid) or ()
        return [replace(span, end=now if span.end == inf else span.end) for span in spans]


def reply_to_query(query: SpansQuery, buffer: SpanBuffer) -> SpansReply:
    """What a process tells who asks it, with its clock."""
    now = time.monotonic()
    return SpansReply(query.correlation_id, measure_clock_offset(), buffer.snapshot(now, query.rid))
