"""The HTTP server around an application. Told to end, it lets those who are there come to their end first.

It starts no other process. Which address it listens at is decided by who makes the socket.
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
"""How often it is looked whether they have."""
MAX_HEADER_BYTES = 64 << 10
"""How large the head of a request may be."""
MAX_WEBSOCKET_MESSAGE_BYTES = 8 << 20
"""How large one message of a WebSocket may be: a robot sends pictures."""


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free. Raises LoadError."""
    if not 0 <= port <= 65_535:
        raise LoadError(f"there is no port {port}\n  fix: choose one from 0 to 65535")
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise LoadError(f"cannot listen at {host}:{port}: {error}\n  fix: choose another --host or --port") from error
    # Connections have this from here: asyncio does not set it, and then a small answer waits 40 ms for its own head.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class HttpServer(uvicorn.Server):
    """Speaks HTTP for a door until a signal comes; clients then have `drain_s` seconds. A second ends it at once."""

    def __init__(self, state: ServerState, application: Starlette, drain_timeout_s: float) -> None:
        connection = functools.partial(
            HttpProtocol, state.limits, compute_max_connections(state.limits), FastReject(state)
        )
        config = uvicorn.Config(
            application,
            http=cast("Any", connection),  # a class is wanted, and is only called
            ws=WebSocketProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # what a client says of its address is not believed
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=1,
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_ping_timeout=None,  # a robot may stall for longer than a ping lasts
            ws_per_message_deflate=False,  # what is small on the wire must not be large here
        )
        super().__init__(config)
        self._state = state
        self._drain_timeout_s = drain_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as a signal handler
        """A signal has come."""
        assert self._loop is not None, "signals are handled while it serves"
        self._loop.call_soon_threadsafe(self.begin_shutdown)

    def begin_shutdown(self) -> None:
        """Let nobody in any more, and end when the last one has come to an end."""
        if self._drain_task is None:
            self._state.drain()
            self._drain_task = asyncio.create_task(self._drain())
        else:
            self.should_exit = True

    async def _drain(self) -> None:
        looks = round(self._drain_timeout_s / DRAIN_POLL_S)
        while self._state.active_requests and looks:
            looks -= 1
            await asyncio.sleep(DRAIN_POLL_S)
        self.should_exit = True
