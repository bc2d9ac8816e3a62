"""Link: what two lives send each other arrives once and in order, over a channel that may lose, repeat and reorder.

Every payload has a number, from 1 on, and is kept until the other side has confirmed it. Every frame confirms all that
has come in without a gap. A link never gives up: whoever learns that the other side is gone drops the link. It knows
neither clock nor socket, and does not look into payloads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import Any

WINDOW = 256
"""How many frames may be under way; more of them wait, so what comes in early is at most this much."""
CONFIRM_EVERY = 32
CONFIRM_AFTER = 0.02
"""A side that sends nothing itself confirms after so many frames, or so many seconds after the first of them."""
RESEND_COUNT = CONFIRM_EVERY  # so that they are confirmed at once, and the next can follow
RESEND_AFTER = 0.2
RESEND_AFTER_AT_MOST = 1.0
"""When nothing was confirmed for so long, the oldest few frames are sent again; the wait doubles each time."""

REFUSED_AFTER = 0.02
"""The same when a frame could not be sent at all."""

Sent = tuple[int, int, Any]
"""Number, confirmation and payload of a frame. Number 0 has no payload: the frame only confirms."""


class Link:
    """One side of a link."""

    __slots__ = (
        "_again",
        "_confirm_at",
        "_confirmed",
        "_early",
        "_heard",
        "_kept",
        "_owed",
        "_resend_at",
        "_sent",
        "_suspect",
        "_wait",
        "resent",
    )

    def __init__(self) -> None:
        self._kept: deque[Any] = deque()  # what the other side has not confirmed; the first has number _confirmed + 1
        self._confirmed = 0
        self._sent = 0  # up to here, frames have been on their way
        self._heard = 0  # up to here, everything has come in
        self._early: dict[int, Any] = {}
        self._owed = 0  # how many frames came in since we last confirmed
        self._confirm_at = inf
        self._resend_at = inf
        self._wait = RESEND_AFTER
        self._suspect = 0  # up to here, frames were on their way when the wait was over: they may all be lost
        self._again = 0  # up to here, they were sent again
        self.resent = 0

    @property
    def unacked(self) -> int:
        """How many payloads the other side has not confirmed."""
        return len(self._kept)

    @property
    def due(self) -> float:
        """When `tick` has something to send; never, if infinite."""
        return min(self._confirm_at, self._resend_at)

    def send(self, now: float, payload: Any) -> Sent | None:
        """Take a payload. Returns the frame to send, or None if it has to wait: a later `tick` sends it then."""
        self._kept.append(payload)
        number = self._confirmed + len(self._kept)
        if number != self._sent + 1 or number > self._confirmed + WINDOW:
            return None
        if self._resend_at == inf:
            self._resend_at = now + self._wait
        self._sent = number
        self._owed, self._confirm_at = 0, inf
        return number, self._heard, payload

    def refused(self, now: float) -> None:
        """A frame could not be sent: nothing will be confirmed, so it is tried again sooner."""
        if self._kept:
            self._resend_at = min(self._resend_at, now + REFUSED_AFTER)

    def receive(self, now: float, number: int, ack: int, payload: Any) -> Sequence[Any]:
        """Take a frame. Returns the payloads whose turn it is now."""
        if self._confirmed < ack <= self._sent:
            self._confirm(now, ack)
        if not number:
            return ()
        if number <= self._heard:  # our confirmation was late or lost
            self._confirm_at = now
            return ()
        if number > self._heard + 1:
            if number <= self._heard + WINDOW:
                self._early[number] = payload
            return ()
        payloads = [payload]
        while self._early and (number := number + 1) in self._early:
            payloads.append(self._early.pop(number))
        self._heard += len(payloads)
        self._owed += len(payloads)
        self._confirm_at = now if self._owed >= CONFIRM_EVERY else min(self._confirm_at, now + CONFIRM_AFTER)
        return payloads

    def _confirm(self, now: float, ack: int) -> None:
        for _ in range(ack - self._confirmed):
            self._kept.popleft()
        self._confirmed = ack
        self._wait = RESEND_AFTER
        if self._again <= ack < self._suspect:  # what was sent again has arrived: the next few, without a wait
            self._resend_at = now
        else:
            self._resend_at = now + RESEND_AFTER if self._kept else inf
        if self._confirmed + len(self._kept) > self._sent:  # some wait, and now there is room for them
            self._confirm_at = now

    def tick(self, now: float) -> list[Sent]:
        """What is to be sent now: again, at last, or only to confirm."""
        frames: list[Sent] = []
        if now >= self._resend_at:
            if self._confirmed >= self._suspect:
                self._suspect = self._sent
            frames += self._frames(0, min(RESEND_COUNT, self._sent - self._confirmed))
            self._again = self._confirmed + len(frames)
            self.resent += len(frames)
            self._wait = min(2 * self._wait, RESEND_AFTER_AT_MOST)
            self._resend_at = now + self._wait
        under_way = self._sent - self._confirmed
        if under_way < WINDOW and len(self._kept) > under_way:
            frames += self._frames(under_way, WINDOW)
            self._sent = self._confirmed + min(WINDOW, len(self._kept))
        if now >= self._confirm_at and not frames:
            frames.append((0, self._heard, None))
        if frames:
            self._owed, self._confirm_at = 0, inf
        return frames

    def _frames(self, start: int, stop: int) -> list[Sent]:
        first = self._confirmed + 1
        kept = islice(self._kept, start, stop)
        return [(number, self._heard, payload) for number, payload in enumerate(kept, first + start)]
