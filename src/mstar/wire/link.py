"""Reliable link between two process incarnations: exactly-once, in-order delivery over an at-least-once channel.

The channel below can lose, duplicate and reorder frames. As in TCP:

1. Every payload has a sequence number, starting at 1, and stays in the send buffer until it is acknowledged.
2. Every frame carries a cumulative acknowledgement of all payloads received without a gap.
3. Unacknowledged frames are resent after a timeout with exponential backoff (no jitter: each link has one peer).
4. A send window limits the frames in flight; the receiver drops duplicates and reorders within the window.
5. An unreliable payload, such as a heartbeat, has number 0: it is sent once, is not acknowledged and keeps no order.
6. A frame that the transport refuses was not sent: it and the later ones stay queued until the transport has room.

A link never times out: its owner drops it when the peer is dead. It has no clock and no socket (sans-IO), and does not
interpret payloads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import Any

WINDOW_FRAMES = 256
"""Maximum number of frames in flight. It also bounds the reorder buffer of the receiver."""
ACK_EVERY_FRAMES = 32
"""Number of received frames after which an idle receiver acknowledges."""
ACK_DELAY_S = 0.02
"""Maximum seconds before an idle receiver acknowledges (delayed ack)."""
MAX_RESEND_FRAMES = ACK_EVERY_FRAMES  # a full resend triggers an immediate ack, and the next resend
RESEND_TIMEOUT_S = 0.2
"""Seconds without an acknowledgement before the oldest frames are resent. Doubles with each resend."""
MAX_RESEND_TIMEOUT_S = 1.0
"""Upper limit of the resend timeout."""

REFUSED_RETRY_S = 0.02
"""Seconds before a frame that the transport refused is sent again, unless `on_writable` is called before."""

OutgoingFrame = tuple[int, int, Any]
"""Sequence number, acknowledgement and payload of a frame. Number 0: unreliable, or an acknowledgement only."""


class Link:
    """One end of a link."""

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
        "_retry_at",
        "_send_buffer",
        "_suspected_lost",
        "resent",
    )

    def __init__(self) -> None:
        self._send_buffer: deque[Any] = deque()  # not acknowledged; the first one has number _acked + 1
        self._acked = 0
        self._last_sent = 0  # highest number that the transport has taken
        self._last_received = 0  # highest number received without a gap
        self._out_of_order: dict[int, Any] = {}
        self._acks_owed = 0  # frames received since the last ack was sent
        self._ack_at = inf
        self._resend_at = inf
        self._retry_at = inf
        self._resend_timeout = RESEND_TIMEOUT_S
        self._suspected_lost = 0  # highest number in flight at the last timeout
        self._resent_up_to = 0  # highest number resent since then
        self.resent = 0

    @property
    def unacked(self) -> int:
        """Number of payloads that the peer has not acknowledged."""
        return len(self._send_buffer)

    @property
    def due(self) -> float:
        """Time at which `tick` has something to send; infinite if never."""
        if self._retry_at < inf:
            return self._retry_at
        # Not `min`: a process reads this for all its links in every turn of its loop, and a call costs more.
        return self._ack_at if self._ack_at < self._resend_at else self._resend_at  # noqa: FURB136

    def send(self, now: float, payload: Any) -> OutgoingFrame | None:
        """Queue a payload. Returns the frame to send, or None if it must wait: a later `tick` sends it.

        It waits if the window is full, or if the transport refused a frame and has no room yet.
        """
        self._send_buffer.append(payload)
        number = self._acked + len(self._send_buffer)
        if number != self._last_sent + 1 or number > self._acked + WINDOW_FRAMES or self._retry_at < inf:
            return None
        if self._resend_at == inf:
            self._resend_at = now + self._resend_timeout
        self._last_sent = number
        self._acks_owed, self._ack_at = 0, inf
        return number, self._last_received, payload

    def send_unreliable(self, payload: Any) -> OutgoingFrame:
        """The frame for a payload that can be lost: the next one of its kind replaces it."""
        if self._acked + len(self._send_buffer) == self._last_sent:  # otherwise the next `tick` sends queued payloads
            self._acks_owed, self._ack_at = 0, inf
        return 0, self._last_received, payload

    def on_refused(self, now: float, number: int) -> None:
        """The transport refused a frame: it and the later ones are queued again."""
        if number and number <= self._last_sent:
            self._last_sent = number - 1
            self._suspected_lost = min(self._suspected_lost, self._last_sent)
            if self._last_sent == self._acked:
                self._resend_at = inf
        if self._send_buffer:
            self._retry_at = now + REFUSED_RETRY_S
            self._ack_at = now  # the refused frame had the acknowledgement

    def on_writable(self, now: float) -> None:
        """The transport has room again: the next `tick` sends what it refused."""
        if self._retry_at < inf:
            self._retry_at = now

    def receive(self, now: float, number: int, ack: int, payload: Any) -> Sequence[Any]:
        """Process a received frame. Returns the payloads that are deliverable now, in order."""
        if self._acked < ack <= self._acked + len(self._send_buffer):
            self._on_ack(now, ack)
        if not number:
            return (payload,) if payload else ()
        if number <= self._last_received:  # a duplicate: our ack was late or lost
            self._ack_at = now
            return ()
        if number > self._last_received + 1:
            if number <= self._last_received + WINDOW_FRAMES:
                self._out_of_order[number] = payload
            return ()
        payloads = [payload]
        while self._out_of_order and number + 1 in self._out_of_order:
            number += 1
            payloads.append(self._out_of_order.pop(number))
        self._acks_owed += number - self._last_received
        self._last_received = number
        if self._acks_owed >= ACK_EVERY_FRAMES:
            self._ack_at = now
        elif self._ack_at == inf:  # else an earlier frame is acknowledged before, and this one with it
            self._ack_at = now + ACK_DELAY_S
        return payloads

    def _on_ack(self, now: float, ack: int) -> None:
        for _ in range(ack - self._acked):
            self._send_buffer.popleft()
        self._acked = ack
        self._last_sent = max(self._last_sent, ack)  # it can have arrived before the transport refused to resend it
        self._resend_timeout = RESEND_TIMEOUT_S
        if self._resent_up_to <= ack < self._suspected_lost:  # the resent frames arrived: resend the next ones at once
            self._resend_at = now
        else:
            self._resend_at = now + RESEND_TIMEOUT_S if self._acked < self._last_sent else inf
        if self._acked + len(self._send_buffer) > self._last_sent:  # the window has room again for queued payloads
            self._ack_at = now

    def tick(self, now: float) -> list[OutgoingFrame]:
        """Frames to send now: resends, queued payloads that fit the window, or a pure acknowledgement."""
        frames: list[OutgoingFrame] = []
        self._retry_at = inf
        if now >= self._resend_at:
            if self._acked >= self._suspected_lost:
                self._suspected_lost = self._last_sent
            frames += self._frames(0, min(MAX_RESEND_FRAMES, self._last_sent - self._acked))
            self._resent_up_to = self._acked + len(frames)
            self.resent += len(frames)
            self._resend_timeout = min(2 * self._resend_timeout, MAX_RESEND_TIMEOUT_S)
            self._resend_at = now + self._resend_timeout
        in_flight = self._last_sent - self._acked
        if in_flight < WINDOW_FRAMES and len(self._send_buffer) > in_flight:
            frames += self._frames(in_flight, WINDOW_FRAMES)
            self._last_sent = self._acked + min(WINDOW_FRAMES, len(self._send_buffer))
            if self._resend_at == inf:
                self._resend_at = now + self._resend_timeout
        if now >= self._ack_at and not frames:
            frames.append((0, self._last_received, None))
        if frames:
            self._acks_owed, self._ack_at = 0, inf
        return frames

    def _frames(self, start: int, stop: int) -> list[OutgoingFrame]:
        first = self._acked + 1
        pending = islice(self._send_buffer, start, stop)
        return [(number, self._last_received, payload) for number, payload in enumerate(pending, first + start)]
