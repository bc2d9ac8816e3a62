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

WINDOW_FRAMES = 256
"""How many frames may be under way; more of them wait, so what comes in early is at most this much."""
ACK_EVERY_FRAMES = 32
ACK_DELAY_S = 0.02
"""A side that sends nothing itself confirms after so many frames, or so many seconds after the first of them."""
MAX_RESEND_FRAMES = ACK_EVERY_FRAMES  # so that they are confirmed at once, and the next can follow
RESEND_TIMEOUT_S = 0.2
MAX_RESEND_TIMEOUT_S = 1.0
"""When nothing was confirmed for so long, the oldest few frames are sent again; the wait doubles each time."""

REFUSED_RETRY_S = 0.02
"""The same when a frame could not be sent at all."""

OutgoingFrame = tuple[int, int, Any]
"""Number, confirmation and payload of a frame. Number 0 has no payload: the frame only confirms."""


class Link:
    """One side of a link."""

    __slots__ = (
        "_ack_at",
        "_acked",
        "_acks_owed",
        "_last_received",
        "_last_sent",
        "_out_of_order",
        "_resend_at",
        "_resend_timeout",
        "_resent_up_to",
        "_send_buffer",
        "_suspected_lost",
        "resent",
    )

    def __init__(self) -> None:
        self._send_buffer: deque[Any] = (
            deque()
        )  # what the other side has not confirmed; the first has number _confirmed + 1
        self._acked = 0
        self._last_sent = 0  # up to here, frames have been on their way
        self._last_received = 0  # up to here, everything has come in
        self._out_of_order: dict[int, Any] = {}
        self._acks_owed = 0  # how many frames came in since we last confirmed
        self._ack_at = inf
        self._resend_at = inf
        self._resend_timeout = RESEND_TIMEOUT_S
        self._suspected_lost = 0  # up to here, frames were on their way when the wait was over: they may all be lost
        self._resent_up_to = 0  # up to here, they were sent again
        self.resent = 0

    @property
    def unacked(self) -> int:
        """How many payloads the other side has not confirmed."""
        return len(self._send_buffer)

    @property
    def due(self) -> float:
        """When `tick` has something to send; never, if infinite."""
        return min(self._ack_at, self._resend_at)

    def send(self, now: float, payload: Any) -> OutgoingFrame | None:
        """Take a payload. Returns the frame to send, or None if it has to wait: a later `tick` sends it then."""
        self._send_buffer.append(payload)
        number = self._acked + len(self._send_buffer)
        if number != self._last_sent + 1 or number > self._acked + WINDOW_FRAMES:
            return None
        if self._resend_at == inf:
            self._resend_at = now + self._resend_timeout
        self._last_sent = number
        self._acks_owed, self._ack_at = 0, inf
        return number, self._last_received, payload

    def on_refused(self, now: float) -> None:
        """A frame could not be sent: nothing will be confirmed, so it is tried again sooner."""
        if self._send_buffer:
            self._resend_at = min(self._resend_at, now + REFUSED_RETRY_S)

    def receive(self, now: float, number: int, ack: int, payload: Any) -> Sequence[Any]:
        """Take a frame. Returns the payloads whose turn it is now."""
        if self._acked < ack <= self._last_sent:
            self._on_ack(now, ack)
        if not number:
            return ()
        if number <= self._last_received:  # our confirmation was late or lost
            self._ack_at = now
            return ()
        if number > self._last_received + 1:
            if number <= self._last_received + WINDOW_FRAMES:
                self._out_of_order[number] = payload
            return ()
        payloads = [payload]
        while self._out_of_order and (number := number + 1) in self._out_of_order:
            payloads.append(self._out_of_order.pop(number))
        self._last_received += len(payloads)
        self._acks_owed += len(payloads)
        self._ack_at = now if self._acks_owed >= ACK_EVERY_FRAMES else min(self._ack_at, now + ACK_DELAY_S)
        return payloads

    def _on_ack(self, now: float, ack: int) -> None:
        for _ in range(ack - self._acked):
            self._send_buffer.popleft()
        self._acked = ack
        self._resend_timeout = RESEND_TIMEOUT_S
        if (
            self._resent_up_to <= ack < self._suspected_lost
        ):  # what was sent again has arrived: the next few, without a wait
            self._resend_at = now
        else:
            self._resend_at = now + RESEND_TIMEOUT_S if self._send_buffer else inf
        if self._acked + len(self._send_buffer) > self._last_sent:  # some wait, and now there is room for them
            self._ack_at = now

    def tick(self, now: float) -> list[OutgoingFrame]:
        """What is to be sent now: again, at last, or only to confirm."""
        frames: list[OutgoingFrame] = []
        if now >= self._resend_at:
            if self._acked >= self._suspected_lost:
                self._suspected_lost = self._last_sent
            frames += self._frames(0, min(MAX_RESEND_FRAMES, self._last_sent - self._acked))
            self._resent_up_to = self._acked + len(frames)
            self.resent += len(frames)
            self._resend_timeout = min(2 * self._resend_timeout, MAX_RESEND_TIMEOUT_S)
            self._resend_at = now + self._resend_timeout
        under_way = self._last_sent - self._acked
        if under_way < WINDOW_FRAMES and len(self._send_buffer) > under_way:
            frames += self._frames(under_way, WINDOW_FRAMES)
            self._last_sent = self._acked + min(WINDOW_FRAMES, len(self._send_buffer))
        if now >= self._ack_at and not frames:
            frames.append((0, self._last_received, None))
        if frames:
            self._acks_owed, self._ack_at = 0, inf
        return frames

    def _frames(self, start: int, stop: int) -> list[OutgoingFrame]:
        first = self._acked + 1
        kept = islice(self._send_buffer, start, stop)
        return [(number, self._last_received, payload) for number, payload in enumerate(kept, first + start)]
