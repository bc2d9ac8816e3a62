"""Fetch: decodes what one line brings while the bytes of some values are still on another host.

A node must not wait; this does, in a thread of its own, so that a line keeps its order and holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from mstar.wire.frame import MessageCodec, ValueCodec
from mstar.wire.messages import AnyMessage, Peer

JOIN_TIMEOUT_S = 1.0
"""How long the end of a node waits for a value that is on its way."""

log = logging.getLogger("mstar.wire")


class DecodeThread:
    """The thread of one line. It gives the messages of each payload in order, or None for what holds none."""

    def __init__(self, codec: ValueCodec, remote: Peer, on_decoded: Callable[[list[AnyMessage] | None], None]) -> None:
        self.pending = 0
        """How many payloads were put in; whoever takes what is given counts down."""
        self._translator = MessageCodec(codec, may_wait=True)
        self._remote = remote
        self._on_decoded = on_decoded
        self._payloads: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._is_closed = False
        self._thread = Thread(target=self._run, name=f"decode from {remote}", daemon=True)
        self._thread.start()

    def put(self, payload: bytes | memoryview) -> None:
        """The next payload of the line."""
        self.pending += 1
        self._payloads.put(payload)

    def close(self) -> None:
        """Nobody wants what is left. The value that is on its way just now is waited for, in the thread."""
        self._is_closed = True
        self._payloads.put(None)

    def join(self) -> None:
        """Wait for the thread, but not for long: it ends by itself."""
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (payload := self._payloads.get()) is not None and not self._is_closed:
            try:
                messages = self._translator.decode(payload, self._remote)
            except Exception:  # whatever it is, the line goes on
                log.exception("what %s said is lost", self._remote)
                messages = None
            self._on_decoded(messages)
