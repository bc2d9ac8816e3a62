"""Lingering close: a client that still sends its body gets the response of a rejection.

A server that closes a connection with unread bytes resets it, and the reset can delete a response that the client has
not read. So the response is sent at once, and the rest of the body is read and dropped before the connection closes, as
nginx does (`lingering_close`). On a connection that stays open the HTTP protocol reads the rest anyway.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

LINGER_TIMEOUT_S = 2.0
"""Seconds to read the rest of a rejected body before the connection closes."""


def lingering_send(scope: Scope, receive: Receive, send: Send) -> Send:
    """Return a `send` for a complete response to a request whose body is not read."""
    if scope["type"] != "http" or scope["request_headers"].get("connection", "").lower() != "close":
        return send

    async def send_then_drop_body(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_TIMEOUT_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_then_drop_body
