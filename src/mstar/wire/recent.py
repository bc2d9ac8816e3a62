"""The spans of requests: of those that run, and of the last that ended. Bounded in every direction.

It is told what happened and answers when it is asked; nothing is sent, and nothing is decided by it.
"""

from __future__ import annotations

import time
from collections import deque
from math import inf

from msgspec.structs import replace

from mstar.wire.clock import day_offset
from mstar.wire.figures import Span
from mstar.wire.messages import TakeTimeline, Timeline

ENDED = 256
"""So many requests that ended are remembered."""
SPANS = 256
"""So many spans of one request are, the newest: a session can go on for days."""


class Recent:
    """Spans by request. The owner says what time it is at each of its steps."""

    def __init__(self) -> None:
        self.now = -inf
        self._live: dict[str, deque[Span]] = {}
        self._ended: dict[str, deque[Span]] = {}

    def spans(self, rid: str) -> deque[Span]:
        """The spans of a request that runs, to be added to; those of its earlier attempts are among them."""
        found = self._live.get(rid)
        if found is None:
            found = self._live[rid] = self._ended.pop(rid, None) or deque(maxlen=SPANS)
        return found

    def end(self, rid: str) -> None:
        """A request is over: it is one of the last that ended."""
        spans = self._live.pop(rid, None)
        if spans is not None:
            self._ended[rid] = spans
            if len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]

    def told(self, now: float, rid: str) -> list[Span]:
        """What a request did, as far as it is remembered. What goes on is said to last until now."""
        spans = self._live.get(rid) or self._ended.get(rid) or ()
        return [replace(span, end=now if span.end == inf else span.end) for span in spans]


def answer(question: TakeTimeline, recent: Recent) -> Timeline:
    """What a process tells who asks it, with its clock."""
    now = time.monotonic()
    return Timeline(question.ticket, day_offset(), recent.told(now, question.rid))
