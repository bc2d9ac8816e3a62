"""Answers to requests that come while the door is shut, and are there whole: refused before anything is made of them.

What a request takes until it can be refused (its parsing, a task, the application) is a multiple of what the refusal
takes, and in a flood it is missing to those who are served. So what is plainly a request that would be refused is
answered from its bytes. Whatever is not plain goes the usual way, and is looked at with care there: nobody is let in
here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import formatdate

from mstar.server.door import Door, Surface
from mstar.server.pacing import HEADER
from mstar.server.refusals import Refusal
from mstar.server.timeline import Entry
from mstar.server.visit import Passage, named

HEAD_BYTES = 8 << 10
"""Larger heads are not plain: reading them would take long."""
_NOT_PLAIN = frozenset({"transfer-encoding", "expect", "upgrade"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send, and whether that is the last."""

    data: bytes
    is_last: bool


class Early:
    """Reads what a client has sent, and says what to answer if no more is needed for that."""

    def __init__(self, door: Door) -> None:
        self._door = door
        asking = [one for one in door.surfaces if one.method == "POST" and one.ask is not None]
        self._surfaces = {f"POST {one.path} HTTP/1.1": one for one in asking}

    def answer(self, data: bytes) -> Answer | None:
        """What to answer to all that a connection has brought since its last answer; None for the usual way."""
        if not self._door.latch.is_shut or self._door.phase.name != "ready":
            return None
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        line, *lines = data[: max(end, 0)].decode("latin-1").split("\r\n")
        body = data[end + 4 :]
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        surface = self._surfaces.get(line)
        is_plain = len(headers) == len(lines) and not headers.keys() & _NOT_PLAIN
        if surface is None or not is_plain or headers.get("content-length") != str(len(body)):
            return None
        if surface.patient and surface.patient in body:
            return None
        passage = Passage(named(headers.get("x-request-id", "")))
        refusal = self._refusal(passage, surface, headers)
        return None if refusal is None else self._told(passage, refusal, headers, len(body))

    def _refusal(self, passage: Passage, surface: Surface, headers: dict[str, str]) -> Refusal | None:
        """What a request is told, if the door is shut to it."""
        passage.holder = holder = self._door.keys.holder(headers.get("authorization", ""))
        if holder is None:
            return None
        try:
            passage.arrive(surface, headers.get(HEADER.lower(), ""))
        except Refusal:
            return None
        refusal = self._door.early_refusal(surface, passage)
        # It costs what any other costs, and who has no more left is told that.
        return None if refusal is None or holder.wait(time.monotonic()) else refusal

    def _told(self, passage: Passage, refusal: Refusal, headers: dict[str, str], size: int) -> Answer:
        entry = Entry(passage, headers.get("traceparent", ""))
        passage.refused(refusal)
        is_last = "close" in headers.get("connection", "").lower()
        more = {"Date": formatdate(usegmt=True), "X-Request-Id": passage.id}
        self._door.ended(entry, size, len(refusal.body))
        return Answer(refusal.raw(more | {"Connection": "close"} if is_last else more), is_last)
