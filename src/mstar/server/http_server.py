"""The HTTP server: uvicorn with hardened protocols and graceful shutdown (drain).

At the first signal it stops accepting requests and waits for running ones; a second signal ends it at once. It starts
no other process, and the caller binds the socket.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from mstar.errors import LoadError
from mstar.server.access.fast_reject import FastReject
from mstar.server.protocols import HttpProtocol, WebSocketProtocol, compute_max_connections
from mstar.server.state import ServerState

DRAIN_POLL_S = 0.05
"""Seconds between two checks for running requests during a drain."""
MAX_HEADER_BYTES = 64 << 10
"""Maximum size of a request line with headers."""
MAX_WEBSOCKET_MESSAGE_BYTES = 8 << 20
"""Maximum size of one WebSocket message. Robots send camera images in one message."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 picks a free port. Raises LoadError."""
    if not 0 <= port <= 65_535:
        raise LoadError(f"port {port} is out of range\n  fix: choose a port from 0 to 65535")
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise LoadError(f"cannot listen at {host}:{port}: {error}\n  fix: choose another --host or --port") from error
    # Accepted connections inherit TCP_NODELAY. asyncio does not set it here, and Nagle's algorithm would delay small
    # responses by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class HttpServer(uvicorn.Server):
    """Serves until a signal; running requests then have `drain_timeout_s` seconds. A second signal ends it at once."""

    def __init__(self, state: ServerState, application: Starlette, drain_timeout_s: float) -> None:
        protocol = functools.partial(
            HttpProtocol, state.limits, compute_max_connections(state.limits), FastReject(state)
        )
        config = uvicorn.Config(
            application,
            http=cast("Any", protocol),  # typed as a class, but only called
            ws=WebSocketProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a client could forge its address
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=1,
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_ping_timeout=None,  # a robot can stall for longer than a ping timeout
            ws_per_message_deflate=False,  # no decompression bombs
        )
        super().__init__(config)
        self._state = state
        self._drain_timeout_s = drain_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until shutdown."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal handler signature
        """Handle SIGINT or SIGTERM."""
        assert self._loop is not None, "signals are handled only while serving"
        self._loop.call_soon_threadsafe(self.begin_shutdown)

    def begin_shutdown(self) -> None:
        """Drain: reject new requests and exit after the last running one. The second call exits at once."""
        if self._drain_task is None:
            self._state.drain()
            self._drain_task = asyncio.create_task(self._drain())
        else:
            self.should_exit = True

    async def _drain(self) -> None:
        polls = round(self._drain_timeout_s / DRAIN_POLL_S)
        while self._state.active_requests and polls:
            polls -= 1
            await asyncio.sleep(DRAIN_POLL_S)
        self.should_exit = True
