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

SPOKEN = ("mstar", "realtime")
"""Sub-protocols that may be agreed on: the studio's, and that of OpenAI's clients. A key is never sent back."""
_KEY, _OPENAI_KEY = "mstar-key.", "openai-insecure-api-key."


def authorization(headers: Headers, protocols: Sequence[str]) -> str:
    """The header `Authorization`, or what stands for it among the sub-protocols that a WebSocket offers."""
    if (sent := headers.get("authorization")) is not None:
        return sent
    for name in protocols:
        if name.startswith(_OPENAI_KEY):
            return f"Bearer {name.removeprefix(_OPENAI_KEY)}"
        if name.startswith(_KEY):
            return f"Bearer {_decoded(name.removeprefix(_KEY))}"
    return ""


def _decoded(text: str) -> str:
    """A text that was written in base64url; nothing, if it was not."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def agreed(protocols: Sequence[str]) -> str | None:
    """The sub-protocol that a WebSocket is opened with."""
    return next((name for name in SPOKEN if name in protocols), None)


def is_elsewhere(headers: Headers) -> bool:
    """Whether a request is of a page that this server has not sent. What is no browser says nothing of that."""
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") == "same-origin":  # a proxy may have changed the host
        return False
    page, here = _split(origin), _split(f"//{headers.get('host', '')}")
    if page is None or here is None or not page.hostname or page.hostname != here.hostname:
        return True
    return here.port is not None and here.port != (page.port or {"http": 80, "https": 443}.get(page.scheme))


def _split(address: str) -> SplitResult | None:
    try:
        found = urlsplit(address)
        _ = found.port  # which may be none
    except ValueError:
        return None
    return found
