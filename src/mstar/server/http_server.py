"""The HTTP server: uvicorn with hardened protocols and graceful shutdown (drain).

At the first signal it stops accepting requests and waits for running ones; a second signal ends these with an error
(see `shutdown`). It starts no other process, and the caller binds the socket.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from mstar.errors import LoadError
from mstar.server.acceptor import Acceptor
from mstar.server.access.fast_reject import FastReject
from mstar.server.admin.overview import sample_history
from mstar.server.protocols import HttpProtocol, WebSocketProtocol, compute_max_connections
from mstar.server.state import ServerState

DRAIN_POLL_S = 0.05
"""Seconds between two checks for running requests during a drain."""
KEEP_ALIVE_TIMEOUT_S = 75
"""Seconds after which an idle connection is closed. Longer than clients and load balancers keep one (httpx 5 s, aiohttp
15 s, nginx and AWS 60 s): a request that is sent while the server closes ends with a reset connection."""
LOOP_TICK_S = 1.0
"""Seconds between two ticks of the event loop: they update the Date header and tell the probe server that it runs."""
MAX_UNSENT_BYTES = 32 << 10
"""Maximum bytes in the kernel's send buffer that the client's receive window has no room for."""
MAX_WEBSOCKET_MESSAGE_BYTES = 8 << 20
"""Maximum size of one WebSocket message. Robots send camera images in one message."""


def bind_socket(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Bind a listening socket; port 0 picks a free port. With `reuse_port` several can listen. Raises LoadError."""
    if not 0 <= port <= 65_535:
        raise LoadError(f"port {port} is out of range\n  fix: choose a port from 0 to 65535")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, reuse_port=reuse_port)
    except OSError as error:
        raise LoadError(f"cannot listen at {host}:{port}: {error}\n  fix: choose another --host or --port") from error
    # Accepted connections inherit TCP_NODELAY. asyncio does not set it here, and Nagle's algorithm would delay small
    # responses by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Inherited too. The kernel would otherwise buffer 4 MB of a response whose client does not read, which are 19,000
    # tokens that a worker computes before backpressure reaches it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
    return listener


class HttpServer(uvicorn.Server):
    """Serves until a signal; running requests then have `drain_timeout_s` seconds. A second signal ends them."""

    def __init__(self, state: ServerState, application: Starlette, drain_timeout_s: float) -> None:
        state.max_connections = compute_max_connections(state.limits)
        self._fast_reject = FastReject(state)
        protocol = functools.partial(HttpProtocol, state.limits, state.max_connections, self._fast_reject)
        config = uvicorn.Config(
            application,
            http=cast("Any", protocol),  # typed as a class, but only called
            ws=cast("Any", functools.partial(WebSocketProtocol, state.limits)),
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a client could forge its address
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
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
        self._end_task: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until shutdown."""
        self._loop = asyncio.get_running_loop()
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_logged)
        running = [asyncio.create_task(sample_history(self._state))]
        if self._state.session_backups is not None:
            running.append(asyncio.create_task(self._state.session_backups.run()))
        try:
            await super().serve(sockets)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await self._state.mcp_servers.close()
            log.removeFilter(self._is_logged)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections with an `Acceptor` in place of asyncio's server."""
        make_protocol = functools.partial(
            cast("Any", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        acceptors: list[Any] = []
        for listener in sockets or ():
            listener.listen(self.config.backlog)
            acceptors.append(Acceptor(self._state, self._fast_reject, listener, make_protocol))
        self.servers = acceptors  # typed as servers of asyncio, but only closed
        self.started = True

    async def main_loop(self) -> None:
        """Tick until `stop`. uvicorn's own loop wakes up 10 times per second to look at `should_exit`."""
        while not await self.on_tick(0):
            self._state.loop_ticked_at = time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), LOOP_TICK_S)

    def stop(self) -> None:
        """Stop serving. Running requests are cut off."""
        self.should_exit = True
        self._stopped.set()

    def _is_logged(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - logging filter signature
        """Whether to log a line of uvicorn: not for responses that a shutdown cuts, which the access log has."""
        return not self._state.shutdown.is_cancelling

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal handler signature
        """Handle SIGINT or SIGTERM."""
        assert self._loop is not None, "signals are handled only while serving"
        self._loop.call_soon_threadsafe(self.begin_shutdown)

    def begin_shutdown(self) -> None:
        """Drain: reject new requests and exit after the last running one. The second call ends these with an error."""
        if self._drain_task is None:
            self._state.drain()
            self._drain_task = asyncio.create_task(self._drain())
        elif self._end_task is None:
            self._end_task = asyncio.create_task(self._end())
        else:
            self.stop()

    async def _drain(self) -> None:
        polls = round(self._drain_timeout_s / DRAIN_POLL_S)
        while self._state.active_requests and polls and self._end_task is None:
            polls -= 1
            self._state.shutdown.end_idle_websockets()
            await asyncio.sleep(DRAIN_POLL_S)
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._end())

    async def _end(self) -> None:
        await self._state.end_requests()
        self.stop()
