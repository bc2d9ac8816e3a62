"""`mstar serve --frontends N`: front ends that are processes of their own, and how the launcher starts and ends them.

The launcher has no client then. It reserves the port, reports the state of the deployment to the front ends, and drains
them at SIGTERM before it stops the other processes.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
import time
from contextlib import suppress

import msgspec

from mstar.config import FrontendSettings, HttpLimits, McpServerConfig, ServerConfig
from mstar.errors import LoadError
from mstar.launch.frontends.group import FrontendGroup
from mstar.launch.launcher import Launcher
from mstar.server.frontends.deployment_view import encode_view
from mstar.server.http_server import LOOP_TICK_S, bind_socket
from mstar.server.inputs.memory_budget import default_budget_bytes
from mstar.server.state import ServerState

POLL_S = 0.05
"""Seconds between two checks of the front ends, during the start and the shutdown."""
EXIT_TIMEOUT_S = 5.0
"""Seconds after the drain timeout until front ends that have not exited are killed."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def check_frontends(server: ServerConfig) -> None:
    """Raise LoadError if another setting allows one front end only."""
    if server.frontends > 1 and (server.in_process or server.cluster):
        flag = "--in-process" if server.in_process else "--cluster"
        problem = f"--frontends {server.frontends} needs processes of its own on this host, and {flag} has none"
        raise LoadError(f"{problem}\n  fix: omit {flag}, or omit --frontends")


def frontend_settings(
    server: ServerConfig, limits: HttpLimits, mcp_servers: dict[str, McpServerConfig]
) -> FrontendSettings:
    """Settings of each front end. Limits that protect the machine are divided."""
    count = server.frontends
    shares = {
        "max_connections": math.ceil(limits.max_connections / count),
        "max_input_memory_bytes": max(1, (limits.max_input_memory_bytes or default_budget_bytes()) // count),
    }
    shared_limits = msgspec.structs.replace(limits, **shares)
    return FrontendSettings(server=server, limits=shared_limits, mcp_servers=mcp_servers)


def reserve_port(host: str, port: int) -> socket.socket:
    """Reserve a port that front ends will listen on: a socket that is bound and does not listen itself.

    Raises LoadError if another server listens there: with SO_REUSEPORT it would silently share the connections.
    """
    with bind_socket(host, port) as free:
        address = free.getsockname()
    reserved = socket.socket(free.family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if reserved.family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as `create_server` does
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise LoadError(f"cannot reserve {host}:{port}: {error}\n  fix: choose another --host or --port") from error
    return reserved


async def wait_accepting(frontends: FrontendGroup, state: ServerState) -> None:
    """Wait until every front end that is a process of its own accepts requests, or the shutdown begins."""
    frontends.report_soon()
    while not frontends.are_accepting() and state.phase.name == "ready":
        await asyncio.sleep(POLL_S)


class FrontendProcesses:
    """The front ends in place of an HTTP server in the process of the launcher. `serve` ends when they have exited."""

    def __init__(self, state: ServerState, launcher: Launcher, drain_timeout_s: float) -> None:
        self._state = state
        self._launcher = launcher
        self._drain_timeout_s = drain_timeout_s
        self._kill_at = math.inf
        self._is_stopped = False
        self._wakeup = asyncio.Event()
        """Set when the shutdown begins."""
        launcher.frontends.make_report = self._make_report

    def _make_report(self) -> bytes:
        launcher = self._launcher
        return encode_view(self._state, launcher.peers(), launcher.frontends.peers())

    async def serve(self, sockets: list[socket.socket]) -> None:  # noqa: ARG002 - as the HTTP server
        """Return after SIGTERM or SIGINT, when all front ends have exited. The sockets only reserve the port."""
        loop = asyncio.get_running_loop()
        has_signals = threading.current_thread() is threading.main_thread()
        for signal_number in _SIGNALS if has_signals else ():
            loop.add_signal_handler(signal_number, self.begin_shutdown)
        try:
            while not self._wakeup.is_set():
                self._state.loop_ticked_at = time.monotonic()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakeup.wait(), LOOP_TICK_S)
            while self._launcher.frontends.peers() and not self._is_stopped:
                self._state.loop_ticked_at = now = time.monotonic()
                if now > self._kill_at:
                    return
                await asyncio.sleep(POLL_S)
        finally:
            for signal_number in _SIGNALS if has_signals else ():
                loop.remove_signal_handler(signal_number)

    def begin_shutdown(self) -> None:
        """Drain all front ends. A second call ends their requests with an error."""
        self._state.drain()
        self._launcher.frontends.stop()
        self._kill_at = min(self._kill_at, time.monotonic() + self._drain_timeout_s + EXIT_TIMEOUT_S)
        self._wakeup.set()

    def stop(self) -> None:
        """Do not wait for the front ends: the launcher kills them."""
        self._is_stopped = True
        self._wakeup.set()
