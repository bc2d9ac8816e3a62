"""Forwards a WebSocket to the front end that has its session, message by message.

The loss of the client's connection is forwarded as a loss, and a close as a close: the session tells them apart.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from starlette.types import Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from mstar.server.errors import ApiError

_DROPPED_PREFIX = b"sec-websocket-"
_DROPPED_HEADERS = frozenset((b"host", b"connection", b"upgrade"))
"""Headers of one handshake, which are made anew."""


async def forward_websocket(socket: Path, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a connection by the front end at this Unix socket. Raises ApiError before the handshake."""
    await receive()  # websocket.connect
    try:
        upstream = await _connect(socket, scope)
    except InvalidStatus as error:
        await _send_rejection(error.response, send)
        return
    except (OSError, InvalidHandshake) as error:
        message = "the front end that had this session has stopped; fix: open a new session"
        raise ApiError(404, "not_found", message, param="session_id") from error
    try:
        await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol})
        pumps = [asyncio.create_task(_to_owner(receive, upstream)), asyncio.create_task(_to_client(upstream, send))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
    finally:
        upstream.transport.abort()


async def _connect(socket: Path, scope: Scope) -> ClientConnection:
    headers = {name: value for name, value in scope["headers"] if name not in _DROPPED_HEADERS}
    host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
    return await unix_connect(
        str(socket),
        f"ws://{host.decode('latin-1')}{scope['path']}?{scope['query_string'].decode('latin-1')}",
        additional_headers=[
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in headers.items()
            if not name.startswith(_DROPPED_PREFIX)
        ],
        subprotocols=scope["subprotocols"] or None,
        compression=None,
        max_size=None,
        ping_interval=None,
        user_agent_header=None,
    )


async def _to_owner(receive: Receive, upstream: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while (message := await receive())["type"] == "websocket.receive":
            text: str | None = message.get("text")
            await upstream.send(message["bytes"] if text is None else text)
        if "reason" in message:  # else the connection was lost
            await upstream.close(_close_code(message), message["reason"] or "")


def _close_code(message: Message) -> int:
    code = message.get("code", 1000)
    return 1000 if code in (1005, 1006) else code


async def _to_client(upstream: ClientConnection, send: Send) -> None:
    with suppress(OSError):  # the client has left
        try:
            while True:
                content = await upstream.recv()
                await send({"type": "websocket.send", "text" if isinstance(content, str) else "bytes": content})
        except ConnectionClosed as closed:
            if closed.rcvd is not None:  # else the owner has stopped
                await send({"type": "websocket.close", "code": closed.rcvd.code, "reason": closed.rcvd.reason})


async def _send_rejection(response: Response, send: Send) -> None:
    """Forward the response of the owner in place of the handshake."""
    dropped = ("connection", "date", "transfer-encoding")
    headers = [(name.lower(), value) for name, value in response.headers.raw_items() if name.lower() not in dropped]
    await send(
        {
            "type": "websocket.http.response.start",
            "status": response.status_code,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        }
    )
    await send({"type": "websocket.http.response.body", "body": bytes(response.body or b""), "more_body": False})
