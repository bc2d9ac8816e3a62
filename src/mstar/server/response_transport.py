"""Transport of responses: the head of a response and the first bytes of its body leave in one write.

The HTTP protocol writes them one after the other, and each write is a system call and can wake the client.
"""

from __future__ import annotations

import asyncio

MAX_JOINED_BYTES = 64 << 10
"""Maximum bytes of a body that are copied behind the head."""


class ResponseTransport:
    """Writes the responses of one connection. The head of a response waits for its body until the end of the turn."""

    __slots__ = ("_head", "_is_begun", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._is_begun = False

    def end_response(self) -> None:
        """The next write is the head of another response."""
        self._is_begun = False

    def write(self, data: bytes) -> None:
        """Write data, with the head that waits for it."""
        if not self._is_begun:
            self._is_begun = True
            self._head = data
            self._loop.call_soon(self._flush)
            return
        if self._head and data:
            if len(data) <= MAX_JOINED_BYTES:
                data, self._head = self._head + data, b""
            else:
                self._flush()
        if data:
            self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():  # else the client has left meanwhile, and uvloop raises
            self._transport.write(head)

    def is_closing(self) -> bool:
        """Whether the connection is closing or closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()
