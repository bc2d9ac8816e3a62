"""A call: one WebSocket of one client, from its opening to its end.

When the client hangs up, the surface that serves it is cancelled where it waits, and so closes what it has opened. What
is said in a call is read and written by the surfaces.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from mstar.frontend.response_stream import ResponseStream
from mstar.server.access.browser_auth import negotiated_subprotocol
from mstar.server.access.slo import SLO_HEADER
from mstar.server.errors import ApiError
from mstar.server.http_exchange import RequestContext, json_response
from mstar.server.state import Endpoint, ServedModel, ServerState

WEBSOCKET_METHOD = "WS"
"""The method of surfaces that are spoken to over a WebSocket."""
_MAX_INBOX_MESSAGES, _MAX_INBOX_BYTES = 8, 1 << 20
"""So many messages of a client wait to be served, and so much of them; one more is always read."""


class WebSocketSession:
    """One WebSocket of one client, for a surface to serve."""

    def __init__(self, state: ServerState, endpoint: Endpoint, context: RequestContext, socket: WebSocket) -> None:
        self.state = state
        self.endpoint = endpoint
        self.context = context
        self.socket = socket
        self.is_disconnected = False
        """Whether the client has hung up."""
        self._inbox: deque[str | bytes] = deque()
        self._inbox_changed = asyncio.Condition()
        """Something was put into the inbox, or taken out."""
        self._receive_task: asyncio.Task[None] | None = None

    def resolve_model(self, name: str) -> ServedModel:
        """The model that the client named, if it is served here."""
        return self.state.resolve_model(name, self.endpoint)

    def resolve_default_model(self) -> ServedModel:
        """The model that the client means: the one it named as ?model=, or the only one that is served here."""
        fitting = [
            name
            for name, served in self.state.served_models.items()
            if self.endpoint.request_type in served.accepted_types
        ]
        named = self.socket.query_params.get("model", fitting[0] if len(fitting) == 1 else "")
        if not named:
            what = f"say which model with ?model=, one of {', '.join(sorted(fitting)) or 'none'}"
            raise ApiError(404, "model_not_found", what, param="model")
        return self.resolve_model(named)

    async def accept(self) -> None:
        """Begin to speak."""
        await self.socket.accept(negotiated_subprotocol(self.socket.scope.get("subprotocols", ())))
        task = asyncio.current_task()
        assert task is not None, "a server runs in tasks"
        self._receive_task = asyncio.create_task(self._receive_loop(task))

    async def _receive_loop(self, task: asyncio.Task[Any]) -> None:
        while (message := await self.socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            async with self._inbox_changed:
                self._inbox.append(message["bytes"] if text is None else text)
                self._inbox_changed.notify_all()
                await self._inbox_changed.wait_for(self._has_room)
        self.is_disconnected = True
        task.cancel()

    def _has_room(self) -> bool:
        return len(self._inbox) < _MAX_INBOX_MESSAGES and sum(map(sys.getsizeof, self._inbox)) < _MAX_INBOX_BYTES

    async def receive(self) -> str | bytes:
        """What the client says next. Raises Refusal when it has been silent for too long."""
        try:
            async with asyncio.timeout(self.state.limits.websocket_idle_timeout_s), self._inbox_changed:
                await self._inbox_changed.wait_for(lambda: self._inbox)
                said = self._inbox.popleft()
                self._inbox_changed.notify_all()
                return said
        except TimeoutError:
            what = f"nothing was said for {self.state.limits.websocket_idle_timeout_s:g} s"
            raise ApiError(408, "idle_timeout", what) from None

    async def send(self, message: str | bytes) -> None:
        """Say something. To who has hung up, nothing is said; the call notices that by itself."""
        if self.socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await (self.socket.send_text(message) if isinstance(message, str) else self.socket.send_bytes(message))

    async def close_websocket(self, code: int = 1000, reason: str = "") -> None:
        """End it, unless the client has."""
        if self.socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await self.socket.close(code, reason)

    @contextmanager
    def start_requests(self, served: ServedModel, *requests: Any) -> Generator[ResponseStream]:
        """Have requests served, for as long as it is held."""
        live = self.state.start_requests(served, *requests, context=self.context)
        try:
            yield live
        finally:
            live.close()

    async def close_with_error(self, error: ApiError) -> None:
        """End it, with the reason."""
        if self.socket.application_state is not WebSocketState.CONNECTING:
            await self.close_websocket(1011 if error.status >= 500 else 1008, error.code)
        elif "websocket.http.response" in self.socket.scope.get("extensions", {}):
            await self.socket.send_denial_response(json_response(error.content, error.status, error.headers))
        else:
            await self.socket.close(1008, error.code)

    def stop_receiving(self) -> None:
        """Listen no more."""
        if self._receive_task is not None:
            self._receive_task.cancel()


class WebSocketHandler:
    """A surface over WebSockets as an application of its own."""

    def __init__(self, state: ServerState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        passage: RequestContext = scope["request_context"]
        call = WebSocketSession(self._state, self._endpoint, passage, WebSocket(scope, receive, send))
        handle = cast("Callable[[WebSocketSession], Awaitable[None]]", self._endpoint.handler)
        try:
            passage.enter_endpoint(self._endpoint, call.socket.headers.get(SLO_HEADER, ""))
            await handle(call)
        except asyncio.CancelledError:
            if not call.is_disconnected:  # somebody else wants the end
                raise
            task = asyncio.current_task()
            assert task is not None, "a server runs in tasks"
            task.uncancel()
        except WebSocketDisconnect:
            pass  # it hung up while something was sent
        except ApiError as refusal:
            await call.close_with_error(refusal)
        finally:
            call.stop_receiving()


def websocket_endpoint(
    path: str, handler: Callable[[WebSocketSession], Awaitable[None]], request_type: type
) -> Endpoint:
    """A surface that is spoken to over a WebSocket."""
    return Endpoint(WEBSOCKET_METHOD, path, cast("Any", handler), request_type)
