"""Hardened uvicorn protocols: limits for connections before authentication.

They close what uvicorn leaves open: too many connections, headers that never end (slowloris), clients that do not read,
messages in endless small fragments, and pings from a client that does not read. uvicorn implements HTTP and WebSockets;
`strict_http` parses requests, `fast_reject` decides what is rejected from raw bytes, and `write_timeout` detects
clients that do not read.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from mstar.config import HttpLimits
from mstar.server.access.fast_reject import FastReject
from mstar.server.access.lingering_close import LINGER_TIMEOUT_S
from mstar.server.access.load_shedding import Slot
from mstar.server.errors import ApiError
from mstar.server.response_transport import ResponseTransport
from mstar.server.stream_response import FLOW_CONTROL
from mstar.server.strict_http import StrictHttpProtocol
from mstar.server.write_timeout import CancellableFlowControl, ClientStalled, WriteTimer

RESERVED_FDS = 256
"""File descriptors reserved for everything but client connections."""
MAX_LINGERING = 64
"""Maximum number of connections over the limit that wait for their clients to read the rejection."""
READ_DELAY_S = 0.001
"""Seconds in which the event loop reads a request that has arrived on a connection that is about to close."""
MAX_BUFFERED_BYTES = 16 << 10
"""Bytes of a response that wait for the kernel, above which its stream waits for the client. asyncio's 64 KiB are
hundreds of tokens for each of thousands of clients that read slowly."""
MAX_MESSAGE_FRAGMENTS = 4096
"""Maximum number of fragments of a WebSocket message."""


def compute_max_connections(limits: HttpLimits) -> int:
    """Maximum number of connections: the configured limit, capped by the file descriptor limit of the process."""
    return max(1, min(limits.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FDS))


_CLOSE_HEADERS = {"Connection": "close"}
TOO_MANY_CONNECTIONS_RESPONSE = ApiError(
    503, "too_many_connections", "too many connections; fix: retry after 1 s", retry_after=1.0
).http_response(_CLOSE_HEADERS)
BAD_HANDSHAKE_RESPONSE = ApiError(400, "bad_request", "invalid WebSocket handshake").http_response(_CLOSE_HEADERS)


class HttpProtocol(StrictHttpProtocol):
    """One HTTP connection. It is closed if a request header is not complete within `header_timeout_s`.

    If the client reads nothing for `write_timeout_s`, its response ends with an error; after the same time again, the
    connection is closed.
    """

    def __init__(self, limits: HttpLimits, max_connections: int, fast_reject: FastReject, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._max_connections = max_connections
        self._fast_reject = fast_reject
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: WriteTimer | None = None
        self._first_data = b""
        self._first_slot: Slot | None = None
        self._is_rejected = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the header timer and handle the first bytes, or reject the connection."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(MAX_BUFFERED_BYTES)
        self._responses = ResponseTransport(transport, self.loop)
        self.flow = CancellableFlowControl(transport, self._responses)
        self.app_state = self.app_state | {FLOW_CONTROL: self.flow}
        if len(self.connections) > self._max_connections:
            self._reject_connection()
        else:
            self._start_header_timer()
        self._begin()

    def _reject_connection(self) -> None:
        """Send the rejection, and drop what the client sends until it has read that: see `lingering_close`."""
        self._is_rejected = True
        self.transport.write(TOO_MANY_CONNECTIONS_RESPONSE)
        if len(self.connections) > self._max_connections + MAX_LINGERING:
            self.transport.close()
        else:
            self._header_timer = self.loop.call_later(LINGER_TIMEOUT_S, self.transport.close)
            with suppress(OSError):  # the client can be gone
                self.transport.write_eof()

    def _start_header_timer(self) -> None:
        self._cancel_header_timer()
        self._header_timer = self.loop.call_later(self._limits.header_timeout_s, self.transport.close)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def begin_with(self, data: bytes, slot: Slot | None) -> None:
        """Handle these bytes first once the connection is made. Their request has this slot, if any."""
        self._first_data, self._first_slot = data, slot

    def _begin(self) -> None:
        """Handle the first bytes of the connection. The middleware gets the slot of their request."""
        data, slot = self._first_data, self._first_slot
        self._first_data, self._first_slot = b"", None
        if data and not self._is_rejected:
            app_state = self.app_state
            if slot is not None:
                self.app_state = app_state | {"slot": slot}
            self._receive(data, has_slot=slot is not None)
            self.app_state = app_state
        if slot is not None and not self.cycle:  # closed or rejected, or not valid HTTP
            slot.release()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, after a try to reject them unparsed."""
        if not self._is_rejected:
            self._receive(data, has_slot=False)

    def _receive(self, data: bytes, *, has_slot: bool) -> None:
        rejection = self._fast_reject.try_reject(data, has_slot=has_slot) if self.is_idle else None
        if rejection is None:
            super().data_received(data)
            self._update_header_timer()
            return
        self.transport.write(rejection.data)
        if rejection.close_connection:
            self.transport.close()
        else:
            self.on_response_complete()

    def _update_header_timer(self) -> None:
        """Run the header timer unless a request is served: that has its own timeouts."""
        if self.is_serving:
            self._cancel_header_timer()
        elif self._header_timer is None and self in self.connections:  # else it is a WebSocket now
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        """Start to serve a request."""
        super().on_headers_complete()
        if self.is_serving:
            self.cycle.transport = cast("asyncio.Transport", self._responses)  # uses no other methods

    def handle_websocket_upgrade(self) -> None:
        """Stop the header timer and hand over to the WebSocket protocol."""
        self._cancel_header_timer()
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        """Start the header timer if the next request has begun to arrive. Else the keep-alive timer runs."""
        self._responses.end_response()
        super().on_response_complete()
        if self.is_idle:
            self._cancel_header_timer()
        else:
            self._update_header_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless a request has arrived. A late event loop runs timers before it reads."""
        self.timeout_keep_alive_task = self.loop.call_later(READ_DELAY_S, super().timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """Wait for the client, at most `write_timeout_s` without progress."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = WriteTimer(self.transport, self._limits.write_timeout_s, self._on_stall)
        self._write_timer.start()

    def resume_writing(self) -> None:
        """Stop the write timer."""
        if self._write_timer is not None:
            self._write_timer.stop()
        super().resume_writing()

    def _on_stall(self) -> None:
        assert isinstance(self.flow, CancellableFlowControl), "set in connection_made"
        if not self.flow.write_paused or not self.is_serving:
            self.transport.abort()
        else:
            self.flow.cancel(ClientStalled(self._limits.write_timeout_s))
            assert self._write_timer is not None, "it calls this"
            self._write_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and the handler of the request."""
        self._cancel_header_timer()
        if self._write_timer is not None:
            self._write_timer.stop()
        if self.is_serving:
            assert isinstance(self.flow, CancellableFlowControl), "set in connection_made"
            self.flow.disconnect()
        super().connection_lost(exc)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection. It is closed if the client reads nothing for `write_timeout_s`."""

    def __init__(self, limits: HttpLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._write_timer: WriteTimer | None = None

    def pause_writing(self) -> None:
        """Wait for the client, at most `write_timeout_s` without progress."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = WriteTimer(self.transport, self._limits.write_timeout_s, self.transport.abort)
        self._write_timer.start()

    def resume_writing(self) -> None:
        """Stop the write timer."""
        if self._write_timer is not None:
            self._write_timer.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the write timer."""
        if self._write_timer is not None:
            self._write_timer.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. The handshake arrives complete, so a parser that did not start means a bad one."""
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(BAD_HANDSHAKE_RESPONSE)
            self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        """Limit the number of fragments. uvicorn limits only their total size, and empty fragments have none."""
        super().handle_cont(event)
        if len(self.frames) > MAX_MESSAGE_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MAX_MESSAGE_FRAGMENTS} fragments in a message")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Send a pong, unless the client does not read: pongs would pile up in the write buffer."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()
