"""What a page in a browser can send with a WebSocket instead of a header, and where a page is from.

A page cannot set headers of a WebSocket, so its key comes as the name of a sub-protocol. And a page of anywhere can
send requests to a server that only its visitor reaches: browsers say where such a request is from, and here that is
read. Whether a key is right is decided by `keys`; what a refused client is told, by the gate.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

SUBPROTOCOLS = ("mstar", "realtime")
"""Sub-protocols that may be agreed on: the studio's, and that of OpenAI's clients. A key is never sent back."""
_KEY_PREFIX, _OPENAI_KEY_PREFIX = "mstar-key.", "openai-insecure-api-key."


def authorization_from(headers: Headers, subprotocols: Sequence[str]) -> str:
    """The header `Authorization`, or what stands for it among the sub-protocols that a WebSocket offers."""
    if (sent := headers.get("authorization")) is not None:
        return sent
    for name in subprotocols:
        if name.startswith(_OPENAI_KEY_PREFIX):
            return f"Bearer {name.removeprefix(_OPENAI_KEY_PREFIX)}"
        if name.startswith(_KEY_PREFIX):
            return f"Bearer {_decode_base64url(name.removeprefix(_KEY_PREFIX))}"
    return ""


def _decode_base64url(text: str) -> str:
    """A text that was written in base64url; nothing, if it was not."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def negotiated_subprotocol(subprotocols: Sequence[str]) -> str | None:
    """The sub-protocol that a WebSocket is opened with."""
    return next((name for name in SUBPROTOCOLS if name in subprotocols), None)


def is_cross_origin(headers: Headers) -> bool:
    """Whether a request is of a page that this server has not sent. What is no browser says nothing of that."""
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") == "same-origin":  # a proxy may have changed the host
        return False
    page, here = _parse_url(origin), _parse_url(f"//{headers.get('host', '')}")
    if page is None or here is None or not page.hostname or page.hostname != here.hostname:
        return True
    return here.port is not None and here.port != (page.port or {"http": 80, "https": 443}.get(page.scheme))


def _parse_url(address: str) -> SplitResult | None:
    try:
        found = urlsplit(address)
        _ = found.port  # which may be none
    except ValueError:
        return None
    return found
