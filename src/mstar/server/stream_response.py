"""Streamed responses: a body that is sent as it is produced, such as server-sent events or audio.

The head of a response passes through the whole ASGI application. Its body does not: the layers in between only look at
the head, and for a stream of tokens they would cost more than the token itself. So chunks of the body are framed here
and written to the connection with one call each. They wait for a client that does not read, like any other body. What
makes the chunks can also write them itself, in the call that brings their content (`ResponseBody.write_now`): the task
of the request, with the frames of all layers on its stack, is then not resumed for a token.

A body that is not chunked takes the normal path through ASGI: one for an HTTP/1.0 client, with a known length, or for a
HEAD request. So does its end, which completes the HTTP exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mstar.server.request_context import RequestContext
from mstar.server.write_timeout import CancellableFlowControl, ClientStalled

FLOW_CONTROL = "flow_control"
"""Key of the flow control of the connection in the state of an ASGI scope."""


class StreamResponse(StreamingResponse):
    """A response whose body is sent as it is produced.

    If the client does not read, ClientStalled is raised in the generator of the body. What the generator yields after
    it is the end of the body.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI signature
        """Send the body. `HttpHandler` watches for a disconnect, so this does not."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = ResponseBody(scope, send, is_sized="content-length" in self.headers)
        async with aclosing(self._chunks):
            try:
                await self._send_chunks(body)
            except ClientStalled as error:
                last = await self._last_chunk(error)
                if last is None:  # all chunks were produced before
                    raise
                await body.end(last)

    async def _send_chunks(self, body: ResponseBody) -> None:
        async for chunk in self._chunks:
            await body.write(chunk)
        await body.end()

    async def _last_chunk(self, error: ClientStalled) -> bytes | None:
        """The chunk with which the body ends after this error, None if it ends without."""
        return cast("bytes | None", await self._chunks.athrow(error))


class EventStreamResponse(StreamResponse):
    """Server-sent events (SSE). An error in the middle becomes the last event."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        to_last_event: Callable[[BaseException], bytes | None],
        attach: Callable[[ResponseBody], None] | None = None,
    ) -> None:
        """`to_last_event` reports an error and makes its event; None if the error ends the connection.

        `attach` gets the body before its first event, to write events itself while `events` waits for their content.
        """
        super().__init__(events, "text/event-stream", {"Cache-Control": "no-store"})
        self._to_last_event = to_last_event
        self._attach = attach

    async def _send_chunks(self, body: ResponseBody) -> None:
        if self._attach is not None:
            self._attach(body)
        while True:
            try:
                event = await anext(self._chunks)
            except StopAsyncIteration:
                break
            except (Exception, asyncio.CancelledError) as error:
                last = self._to_last_event(error)
                if last is None:
                    raise
                await body.write(last)
                break
            await body.write(event)
        await body.end()

    async def _last_chunk(self, error: ClientStalled) -> bytes | None:
        return self._to_last_event(error)


class ResponseBody:
    """The body of one response."""

    __slots__ = ("_context", "_flow", "_send")

    def __init__(self, scope: Scope, send: Send, *, is_sized: bool) -> None:
        state: dict[str, Any] = scope.get("state") or {}
        is_chunked = scope.get("http_version") == "1.1" and scope.get("method") != "HEAD" and not is_sized
        self._flow: CancellableFlowControl | None = state.get(FLOW_CONTROL) if is_chunked else None
        self._context: RequestContext | None = scope.get("request_context")
        self._send = send

    async def write(self, data: bytes) -> None:
        """Send data, once the connection has room for it. Raises ClientStalled."""
        flow = self._flow
        if flow is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        if flow.write_paused:
            await flow.drain()
        self.write_now(data)

    @property
    def has_room(self) -> bool:
        """Whether data can be sent without waiting."""
        return self._flow is not None and not self._flow.write_paused

    def write_now(self, data: bytes) -> None:
        """Send data to a connection that has room."""
        flow = self._flow
        assert flow is not None, "the connection has room"
        if data and not flow.responses.is_closing():  # else the client has left
            assert self._context is not None, "set by the middleware before any response"
            self._context.bytes_out += len(data)
            flow.responses.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self, last: bytes = b"") -> None:
        """End the body."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
