"""How both clients reach a server: addresses, keys, limits of time, and what a broken connection means."""

from __future__ import annotations

from typing import Any

import httpx2

from mstar.client.errors import ClientError
from mstar.client.responses import ServerPhase
from mstar.client.retry import ConnectionLost

RETRY_TIMEOUT_S = 30.0
"""How long a client waits, in all, before the next part of an answer must be there."""
READ_TIMEOUT_S = 600.0
"""How long the server may be silent."""
_CONNECT_TIMEOUT_S = 10.0


def http_options(url: str, api_key: str, timeout_s: float) -> dict[str, Any]:
    """What a client of httpx2 is made with."""
    if not url.startswith(("http://", "https://")):
        raise ClientError(f"{url!r} is no address\n  fix: write it as http://host:port")
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": httpx2.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
        "limits": httpx2.Limits(max_connections=None),
        "verify": url.startswith("https://"),  # to load certificates takes longer than most answers
    }


def to_connection_lost(error: httpx2.TransportError) -> ConnectionLost:
    """What became of a request."""
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    return ConnectionLost(str(error) or type(error).__name__, may_have_been_sent=not unsent)


def not_ready_reason(phase: ServerPhase) -> str:
    """What keeps a server from being ready; nothing if it is."""
    return "" if phase.name == "ready" else f"{phase.name}, {phase.done} of {phase.total},"
