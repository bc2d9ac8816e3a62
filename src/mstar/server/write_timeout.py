"""Write timeout: detects a client that does not read its response, and cuts it off.

A response that waits for its client keeps its request running at the workers. TCP tells whether the client makes
progress: without free space in its receive buffer it acknowledges nothing. So a client that reads slowly is never cut
off, and one that acknowledges nothing for `write_timeout_s` seconds is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

from mstar.server.errors import ApiError
from mstar.server.response_transport import ResponseTransport

CHECKS_PER_TIMEOUT = 4
"""Checks for progress within one timeout."""
_BYTES_ACKED = struct.Struct("=120xQ")
"""Position of `tcpi_bytes_acked` in Linux's `struct tcp_info`."""


class ClientStalled(ApiError):
    """The client does not read its response."""

    def __init__(self, timeout_s: float) -> None:
        message = (
            f"the client read nothing of the response for {timeout_s:g} s (write_timeout_s); fix: read continuously"
        )
        super().__init__(408, "client_stalled", message)


class WriteTimer:
    """Calls `on_stall` when unsent data of a connection makes no progress for `timeout_s` seconds."""

    def __init__(self, transport: asyncio.Transport, timeout_s: float, on_stall: Callable[[], None]) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledged = 0
        self._progress_at = 0.0

    def start(self) -> None:
        """Start watching: the write buffer is full."""
        self.stop()
        self._acknowledged, self._progress_at = self._acknowledged_bytes(), self._loop.time()
        self._schedule()

    def stop(self) -> None:
        """Stop watching: the write buffer has space again, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s / CHECKS_PER_TIMEOUT, self._check)

    def _check(self) -> None:
        acknowledged, now = self._acknowledged_bytes(), self._loop.time()
        if acknowledged > self._acknowledged:
            self._acknowledged, self._progress_at = acknowledged, now
        if now - self._progress_at >= self._timeout_s:
            self._timer = None
            self._on_stall()
        else:
            self._schedule()

    def _acknowledged_bytes(self) -> int:
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is None or connection.fileno() < 0:
            return 0
        if connection.family == socket.AF_UNIX:
            return self._acknowledged + 1  # another front end, which watches its client itself
        return _BYTES_ACKED.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size))[0]


class CancellableFlowControl(FlowControl):
    """Flow control of a connection. `cancel` makes the response that waits for its client raise ClientStalled."""

    def __init__(self, transport: asyncio.Transport, responses: ResponseTransport) -> None:
        super().__init__(transport)
        self.responses = responses
        """Where the responses of the connection are written to."""
        self.is_disconnected = False
        """Whether the client has left before its response was complete."""
        self.on_disconnect: Callable[[], object] | None = None
        """Called when it leaves."""
        self._error: ClientStalled | None = None

    def disconnect(self) -> None:
        """The client has left before its response was complete."""
        self.is_disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    def cancel(self, error: ClientStalled) -> None:
        """Stop waiting. What the response sends from now on, an error event for example, is buffered."""
        super().resume_writing()
        self._error = error

    def resume_writing(self) -> None:
        """The client reads again: an error that no response has raised is void."""
        self._error = None
        super().resume_writing()

    async def drain(self) -> None:
        """Wait until the write buffer has space."""
        await super().drain()
        error, self._error = self._error, None
        if error is not None:
            raise error
