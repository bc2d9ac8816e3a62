"""WebSocket session: one WebSocket connection, from the handshake to the close.

When the client disconnects, the handler is cancelled where it awaits and closes what it has opened. Messages are
buffered up to a limit (backpressure); what they mean is up to the endpoints.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from mstar.frontend.response_stream import ResponseStream
from mstar.server.access.browser_auth import negotiated_subprotocol
from mstar.server.access.slo import SLO_HEADER
from mstar.server.endpoint import WEBSOCKET_METHOD, Endpoint
from mstar.server.errors import ApiError
from mstar.server.http_exchange import json_response
from mstar.server.inputs.memory_budget import Reservation
from mstar.server.request_context import RequestContext
from mstar.server.shutdown import SESSION_MOVED
from mstar.server.state import ServedModel, ServerState
from mstar.server.unexpected_errors import report_exception

_MAX_INBOX_MESSAGES = 8
"""Maximum number of unread messages before the session stops reading from the socket."""
_MAX_INBOX_BYTES = 1 << 20
"""Maximum size of unread messages before the session stops reading. The message that exceeds it is still read."""


SERVICE_RESTART = 1012
"""Close code of a server that shuts down (RFC 6455 registry)."""
_REPLACED = 4000
"""Close code of a connection that its client has replaced."""
_KEEPALIVE_FAILED = 1011
_NO_CLOSE_FRAME = frozenset({1005, 1006})


class WebSocketSession:
    """One WebSocket connection, for an endpoint to serve."""

    def __init__(self, state: ServerState, endpoint: Endpoint, context: RequestContext, socket: WebSocket) -> None:
        self.state = state
        self.endpoint = endpoint
        self.context = context
        self.socket = socket
        self.is_disconnected = False
        self.resume_timeout_s = 0.0
        """Seconds in which the client can come back after its connection was lost."""
        self.received_messages = 0
        """Messages of the client so far, over all of its connections."""
        self._lost_at: float | None = None
        """When the connection was lost; None while there is one."""
        self._lost_s = 0.0
        """Seconds without a connection so far."""
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._handler_task: asyncio.Task[Any] | None = None
        self._inbox: deque[str | bytes] = deque()
        self._inbox_changed = asyncio.Condition()
        """Notified when a message is put into the inbox or taken out."""
        self._receive_task: asyncio.Task[None] | None = None
        self._wake_task: asyncio.Task[None] | None = None
        self._interruption: ApiError | None = None
        self._running_requests = 0
        self.is_busy: Callable[[], bool] = lambda: self._running_requests > 0
        """Whether a response is in progress. An idle session ends when the server drains."""
        self.can_move: Callable[[], bool] = lambda: False
        """Whether it is a session that continues at another server. It ends here when the server drains."""

    @property
    def memory(self) -> Reservation:
        """Memory of the inputs of this session."""
        return self.context.reserve_memory(self.state.memory_budget)

    def resolve_model(self, name: str) -> ServedModel:
        """The model with this public name. Raises ApiError unless it is served at this endpoint."""
        return self.state.resolve_model(name, self.endpoint)

    def resolve_default_model(self) -> ServedModel:
        """The model in the query parameter `model`, or the only model that is served at this endpoint."""
        candidates = [
            name
            for name, served in self.state.served_models.items()
            if self.endpoint.request_type in served.accepted_types
        ]
        name = self.socket.query_params.get("model", candidates[0] if len(candidates) == 1 else "")
        if not name:
            message = f"no model given; fix: add ?model= with one of {', '.join(sorted(candidates)) or 'none'}"
            raise ApiError(404, "model_not_found", message, param="model")
        return self.resolve_model(name)

    async def accept(self) -> None:
        """Complete the handshake and start to receive."""
        await self.socket.accept(negotiated_subprotocol(self.socket.scope.get("subprotocols", ())))
        self._handler_task = asyncio.current_task()
        self._start_receiving()

    def attach(self, socket: WebSocket) -> asyncio.Task[None]:
        """Continue over another connection of the client, which was accepted.

        Returns a task that ends with the connection or with the session.
        """
        self.stop_receiving()
        # Not awaited: a connection that takes no data does not take a close frame either.
        closing = asyncio.create_task(_close(self.socket, _REPLACED, "replaced"))
        self._closing_tasks.add(closing)
        closing.add_done_callback(self._closing_tasks.discard)
        self.socket = socket
        return self._start_receiving()

    @property
    def is_attached(self) -> bool:
        """Whether the client is connected, as far as the server knows."""
        return self._lost_at is None

    @property
    def connected_time(self) -> float:
        """Monotonic time that stands still while there is no connection, as the playback of a client does."""
        return (time.monotonic() if self._lost_at is None else self._lost_at) - self._lost_s

    def _start_receiving(self) -> asyncio.Task[None]:
        if self._lost_at is not None:
            self._lost_s += time.monotonic() - self._lost_at
            self._lost_at = None
        self._receive_task = asyncio.create_task(self._receive_loop(self.socket))
        return self._receive_task

    async def _receive_loop(self, socket: WebSocket) -> None:
        while (message := await socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            async with self._inbox_changed:
                self.received_messages += 1
                self._inbox.append(message["bytes"] if text is None else text)
                self._inbox_changed.notify_all()
                await self._inbox_changed.wait_for(self._has_room)
        if self.resume_timeout_s and _is_lost(message):
            self._lost_at = time.monotonic()
            await asyncio.sleep(self.resume_timeout_s)  # `attach` cancels it
        self.is_disconnected = True
        assert self._handler_task is not None, "handlers run in tasks"
        self._handler_task.cancel()

    def _has_room(self) -> bool:
        return len(self._inbox) < _MAX_INBOX_MESSAGES and sum(map(sys.getsizeof, self._inbox)) < _MAX_INBOX_BYTES

    async def receive(self) -> str | bytes:
        """The next message. Raises ApiError after `websocket_idle_timeout_s` without one, or after `interrupt`."""
        try:
            async with asyncio.timeout(self.state.limits.websocket_idle_timeout_s), self._inbox_changed:
                await self._inbox_changed.wait_for(lambda: self._inbox or self._interruption)
                if self._interruption is not None:
                    raise self._interruption
                message = self._inbox.popleft()
                self._inbox_changed.notify_all()
                return message
        except TimeoutError:
            reason = f"no message for {self.state.limits.websocket_idle_timeout_s:g} s"
            raise ApiError(408, "idle_timeout", reason) from None

    def interrupt(self, error: ApiError) -> None:
        """Raise an error where the session waits for its next message."""
        if self._interruption is None:
            self._interruption = error
            self._wake_task = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        async with self._inbox_changed:
            self._inbox_changed.notify_all()

    async def send(self, message: str | bytes) -> None:
        """Send a message. Does nothing after a disconnect: `_receive_loop` cancels the handler."""
        if self.socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await (self.socket.send_text(message) if isinstance(message, str) else self.socket.send_bytes(message))

    async def close_websocket(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection, unless the client already has."""
        await _close(self.socket, code, reason)

    @contextmanager
    def start_requests(self, served: ServedModel, *requests: Any) -> Generator[ResponseStream]:
        """Submit requests to the runtime; they are cancelled when the block ends."""
        stream = self.state.start_requests(served, *requests, context=self.context)
        self._running_requests += 1
        try:
            yield stream
        finally:
            self._running_requests -= 1
            stream.close()

    async def close_with_error(self, error: ApiError) -> None:
        """Close with an error: as an HTTP response before the handshake, else with a close code."""
        if self.socket.application_state is not WebSocketState.CONNECTING:
            is_restart = error.code in ("shutting_down", SESSION_MOVED)
            code = SERVICE_RESTART if is_restart else 1011 if error.status >= 500 else 1008
            await self.close_websocket(code, error.code)
        elif "websocket.http.response" in self.socket.scope.get("extensions", {}):
            await self.socket.send_denial_response(json_response(error.content, error.status, error.headers))
        else:
            await self.socket.close(1008, error.code)

    def stop_receiving(self) -> None:
        """Stop the receive task."""
        if self._receive_task is not None:
            self._receive_task.cancel()


class WebSocketHandler:
    """ASGI app of one WebSocket endpoint."""

    def __init__(self, state: ServerState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        context: RequestContext = scope["request_context"]
        session = WebSocketSession(self._state, self._endpoint, context, WebSocket(scope, receive, send))
        self._state.shutdown.websockets.add(session)
        try:
            context.enter_endpoint(self._endpoint, session.socket.headers.get(SLO_HEADER, ""))
            await self._endpoint.handler(session)
        except asyncio.CancelledError:
            if not session.is_disconnected:  # cancelled from outside, not by a disconnect
                error = self._state.shutdown.take_cancellation()
                if error is None:
                    raise
                context.record_error(error)
                await session.close_with_error(error)
                return
            task = asyncio.current_task()
            assert task is not None, "handlers run in tasks"
            task.uncancel()
        except WebSocketDisconnect:
            pass  # the client disconnected during a send
        except ApiError as error:
            context.record_error(error)
            await session.close_with_error(error)
        except Exception as error:  # noqa: BLE001 - any other exception is reported
            api_error = report_exception(error, self._state, context)
            context.record_error(api_error)
            await session.close_with_error(api_error)
        finally:
            self._state.shutdown.websockets.discard(session)
            session.stop_receiving()


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect):
            await socket.close(code, reason)


def _is_lost(message: Message) -> bool:
    """Whether a connection ended without a close frame of the client, or with one because its pings had no answer."""
    code = message.get("code")
    return code == _KEEPALIVE_FAILED or (code in _NO_CLOSE_FRAME and "reason" not in message)


def websocket_endpoint(
    path: str, handler: Callable[[WebSocketSession], Awaitable[None]], request_type: type
) -> Endpoint:
    """An endpoint that is served over a WebSocket."""
    return Endpoint(WEBSOCKET_METHOD, path, handler, request_type)
