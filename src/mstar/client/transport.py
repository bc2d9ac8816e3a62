"""Transport settings of both clients: URL, API key, timeouts, and the mapping of transport errors."""

from __future__ import annotations

from typing import Any

import httpx2

from mstar.client.errors import ClientError
from mstar.client.responses import ServerPhase
from mstar.client.retry import ConnectionLost

RETRY_TIMEOUT_S = 30.0
"""Total seconds of backoff before an error is raised. Progress of the response resets it."""
READ_TIMEOUT_S = 600.0
"""Seconds to wait for the next bytes of a response."""
_CONNECT_TIMEOUT_S = 10.0


def http_options(url: str, api_key: str, timeout_s: float) -> dict[str, Any]:
    """Arguments of an httpx2 client."""
    if not url.startswith(("http://", "https://")):
        raise ClientError(f"{url!r} is not a URL\n  fix: write it as http://host:port")
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": httpx2.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
        "limits": httpx2.Limits(max_connections=None),
        "verify": url.startswith("https://"),  # loading certificates takes longer than most requests
    }


def to_connection_lost(error: httpx2.TransportError) -> ConnectionLost:
    """Convert a transport error; a failed connect means that the request was not sent."""
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    return ConnectionLost(str(error) or type(error).__name__, may_have_been_sent=not unsent)


def not_ready_reason(phase: ServerPhase) -> str:
    """Why the server is not ready; empty if it is."""
    return "" if phase.name == "ready" else f"{phase.name}, {phase.done} of {phase.total},"
