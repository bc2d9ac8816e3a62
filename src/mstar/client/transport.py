"""How both clients reach a server: addresses, keys, limits of time, and what a broken connection means."""

from __future__ import annotations

from typing import Any

import httpx2

from mstar.client.answers import Phase
from mstar.client.errand import Lost
from mstar.client.errors import ClientError

PATIENCE_S = 30.0
"""How long a client waits, in all, before the next part of an answer must be there."""
TIMEOUT_S = 600.0
"""How long the server may be silent."""
_CONNECT_S = 10.0


def settings(url: str, key: str, timeout_s: float) -> dict[str, Any]:
    """What a client of httpx2 is made with."""
    if not url.startswith(("http://", "https://")):
        raise ClientError(f"{url!r} is no address\n  fix: write it as http://host:port")
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx2.Timeout(timeout_s, connect=_CONNECT_S),
        "limits": httpx2.Limits(max_connections=None),
        "verify": url.startswith("https://"),  # to load certificates takes longer than most answers
    }


def lost(error: httpx2.TransportError) -> Lost:
    """What became of a request."""
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    return Lost(str(error) or type(error).__name__, is_sent=not unsent)


def trouble_of(phase: Phase) -> str:
    """What keeps a server from being ready; nothing if it is."""
    return "" if phase.name == "ready" else f"{phase.name}, {phase.done} of {phase.total},"
