"""Decode thread: decodes the payloads of one channel whose arrays are on another host.

The actor loop must not block, this thread does. There is one per channel, so that a channel keeps its order
and does not delay others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from mstar.wire.frame import MessageCodec, ValueCodec
from mstar.wire.messages import AnyMessage, Peer

JOIN_TIMEOUT_S = 1.0
"""Seconds to wait at shutdown for a value in transfer."""

log = logging.getLogger("mstar.wire")


class DecodeThread:
    """The thread of one channel. It calls `on_decoded` per payload, in order, with None if a payload is invalid."""

    def __init__(self, codec: ValueCodec, remote: Peer, on_decoded: Callable[[list[AnyMessage] | None], None]) -> None:
        self.pending = 0
        """Number of payloads in progress. The consumer of `on_decoded` decrements it."""
        self._message_codec = MessageCodec(codec, may_wait=True)
        self._remote = remote
        self._on_decoded = on_decoded
        self._payloads: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._is_closed = False
        self._thread = Thread(target=self._run, name=f"decode from {remote}", daemon=True)
        self._thread.start()

    def put(self, payload: bytes | memoryview) -> None:
        """Queue the next payload of the channel."""
        self.pending += 1
        self._payloads.put(payload)

    def close(self) -> None:
        """Drop queued payloads. A transfer in progress finishes in the thread."""
        self._is_closed = True
        self._payloads.put(None)

    def join(self) -> None:
        """Wait up to JOIN_TIMEOUT_S for the thread."""
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (payload := self._payloads.get()) is not None and not self._is_closed:
            try:
                messages = self._message_codec.decode(payload, self._remote)
            except Exception:  # any error costs one payload, not the channel
                log.exception("dropped an invalid payload from %s", self._remote)
                messages = None
            self._on_decoded(messages)
