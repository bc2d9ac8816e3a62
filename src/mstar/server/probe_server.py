"""Probe server: /health and /ready on a port of their own, answered by threads of their own.

A probe on the main port waits for the event loop, and a loop that is busy for seconds makes an orchestrator restart a
server that works. Threads of this server answer within milliseconds, and report a loop that hangs: without a tick for
`MAX_LOOP_STALL_S` seconds both paths are 503. It needs no API key, so its port must not be public.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import msgspec

from mstar.errors import LoadError
from mstar.server.admin.health import readiness
from mstar.server.state import ServerState

MAX_LOOP_STALL_S = 10.0
"""Seconds without a tick of the event loop after which it counts as hung."""
CLIENT_TIMEOUT_S = 2.0
"""Seconds to wait for the request of a probe."""


class _ProbeHandler(BaseHTTPRequestHandler):
    """One request of a probe."""

    timeout = CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer /health or /ready."""
        assert isinstance(self.server, _ProbeListener), "it makes the handlers"
        state, path = self.server.state, self.path.partition("?")[0]
        stalled_s = time.monotonic() - state.loop_ticked_at
        if path not in ("/health", "/ready"):
            self._respond({"status": "not found"}, 404)
        elif stalled_s > MAX_LOOP_STALL_S:
            self._respond({"status": "the event loop hangs", "seconds": round(stalled_s, 1)}, 503)
        elif path == "/health":
            self._respond({"status": "ok"}, 200)
        else:
            self._respond(*readiness(state))

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log probes."""

    def _respond(self, content: Any, status: int, headers: Mapping[str, str] | None = None) -> None:
        body = msgspec.json.encode(content)
        self.send_response_only(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _ProbeListener(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], state: ServerState) -> None:
        self.state = state
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _ProbeHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a probe that disconnects."""


@contextmanager
def serve_probes(state: ServerState, host: str, port: int) -> Generator[int]:
    """Answer probes until the block ends; yields the port. Raises LoadError if the port cannot be opened."""
    try:
        listener = _ProbeListener((host, port), state)
    except OSError as error:
        raise LoadError(
            f"cannot listen for probes at {host}:{port}: {error}\n  fix: choose another --probe-port"
        ) from error
    thread = threading.Thread(target=listener.serve_forever, name="probes", daemon=True)
    thread.start()
    try:
        yield listener.server_address[1]
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
