"""API keys outside the Authorization header, and the cross-origin (CSRF) check.

Anthropic's clients send a key as `x-api-key`. A web page cannot set headers on a WebSocket, so its key arrives as a
subprotocol name. Any page can also send requests to a server that only its user can reach; the Origin header identifies
them. `api_keys` validates the key, and the middleware in `app` sends the errors.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

SUBPROTOCOLS = ("mstar", "realtime")
"""Subprotocols that the server accepts: the studio's and OpenAI's. A subprotocol with a key is never echoed."""
_KEY_PREFIX = "mstar-key."
_OPENAI_KEY_PREFIX = "openai-insecure-api-key."


def authorization_from(headers: Mapping[str, str], subprotocols: Sequence[str]) -> str:
    """The Authorization header, or its equivalent from `x-api-key` or a WebSocket subprotocol. Empty without a key."""
    if (authorization := headers.get("authorization")) is not None:
        return authorization
    if (key := headers.get("x-api-key")) is not None:
        return f"Bearer {key}"
    for name in subprotocols:
        if name.startswith(_OPENAI_KEY_PREFIX):
            return f"Bearer {name.removeprefix(_OPENAI_KEY_PREFIX)}"
        if name.startswith(_KEY_PREFIX):
            return f"Bearer {_decode_base64url(name.removeprefix(_KEY_PREFIX))}"
    return ""


def _decode_base64url(text: str) -> str:
    """Decode unpadded base64url; empty if it is malformed."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def negotiated_subprotocol(subprotocols: Sequence[str]) -> str | None:
    """The subprotocol that the server accepts, or None."""
    return next((name for name in SUBPROTOCOLS if name in subprotocols), None)


def is_cross_origin(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin sent the request. False without an Origin header: not a browser."""
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") == "same-origin":  # a proxy can rewrite the Host header
        return False
    page, server = _parse_url(origin), _parse_url(f"//{headers.get('host', '')}")
    if page is None or server is None or not page.hostname or page.hostname != server.hostname:
        return True
    return server.port is not None and server.port != (page.port or {"http": 80, "https": 443}.get(page.scheme))


def _parse_url(address: str) -> SplitResult | None:
    try:
        url = urlsplit(address)
        _ = url.port  # raises ValueError if malformed
    except ValueError:
        return None
    return url
