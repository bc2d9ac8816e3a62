"""Connections of clients whom nobody knows yet: how many there may be, and how long each may take to say what it wants.

What uvicorn leaves open is closed here: heads that never end, messages in endless small parts, pings of who does not
read. How HTTP and WebSockets are spoken is uvicorn's; what is asked for is not read here, and what is answered before
that is decided by `early`.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from mstar.config import HttpLimits
from mstar.server.access.fast_reject import FastReject
from mstar.server.errors import ApiError

RESERVED_FDS = 256
"""So many files are kept for what is not a client."""
_IDLE = {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
MAX_MESSAGE_FRAGMENTS = 4096
"""In so many parts a message of a WebSocket may come."""


def compute_max_connections(limits: HttpLimits) -> int:
    """How many connections there may be: what is configured, unless this process may not open as many files."""
    return max(1, min(limits.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FDS))


_CLOSE_HEADERS = {"Connection": "close"}
TOO_MANY_CONNECTIONS_RESPONSE = ApiError(
    503, "too_many_connections", "the server has as many clients as it may have", retry_after=1.0
).http_response(_CLOSE_HEADERS)
BAD_HANDSHAKE_RESPONSE = ApiError(400, "bad_request", "this is no request for a WebSocket").http_response(
    _CLOSE_HEADERS
)


class HttpProtocol(H11Protocol):
    """One connection. While nothing of it is served, its time runs, whatever it sends."""

    def __init__(self, limits: HttpLimits, max_connections: int, fast_reject: FastReject, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._max_connections = max_connections
        self._fast_reject = fast_reject
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            transport.write(TOO_MANY_CONNECTIONS_RESPONSE)
            transport.close()
        else:
            self._start_header_timer()

    def _start_header_timer(self) -> None:
        self._cancel_header_timer()
        self._header_timer = self.loop.call_later(self._limits.header_timeout_s, self.transport.close)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def data_received(self, data: bytes) -> None:
        """Something has come. What would only be refused is answered at once."""
        is_first = self.conn.states == _IDLE and not self.conn.trailing_data[0]
        answer = self._fast_reject.try_reject(data) if is_first else None
        if answer is None:
            super().data_received(data)
            return
        self.transport.write(answer.data)
        if answer.close_connection:
            self.transport.close()
        else:
            self.on_response_complete()

    def handle_events(self) -> None:
        """Go on with what has come; a request that is served has its own limits."""
        super().handle_events()
        if self.cycle and not self.cycle.response_complete:
            self._cancel_header_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """It is a call from here on."""
        self._cancel_header_timer()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """A request was answered; perhaps there is another one."""
        self._start_header_timer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._cancel_header_timer()
        super().connection_lost(exc)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection over which a WebSocket is spoken."""

    def data_received(self, data: bytes) -> None:
        """Something has come: first the head, which is whole."""
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(BAD_HANDSHAKE_RESPONSE)
            self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        """One more part of a message. Their size is bounded elsewhere, and empty ones have none."""
        super().handle_cont(event)
        if len(self.frames) > MAX_MESSAGE_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {MAX_MESSAGE_FRAGMENTS} parts")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer, unless the client does not read."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()
