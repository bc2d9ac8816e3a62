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

from mstar.server.browsers import agreed
from mstar.server.door import Door, Served, Surface
from mstar.server.live import Live
from mstar.server.pacing import HEADER
from mstar.server.refusals import Refusal
from mstar.server.visit import Passage, answered

METHOD = "WS"
"""The method of surfaces that are spoken to over a WebSocket."""
_BEHIND, _BEHIND_BYTES = 8, 1 << 20
"""So many messages of a client wait to be served, and so much of them; one more is always read."""


class Call:
    """One WebSocket of one client, for a surface to serve."""

    def __init__(self, door: Door, surface: Surface, passage: Passage, socket: WebSocket) -> None:
        self.door = door
        self.surface = surface
        self.passage = passage
        self.socket = socket
        self.is_gone = False
        """Whether the client has hung up."""
        self._inbox: deque[str | bytes] = deque()
        self._moved = asyncio.Condition()
        """Something was put into the inbox, or taken out."""
        self._listener: asyncio.Task[None] | None = None

    def find(self, name: str) -> Served:
        """The model that the client named, if it is served here."""
        return self.door.find(name, self.surface)

    def find_only(self) -> Served:
        """The model that the client means: the one it named as ?model=, or the only one that is served here."""
        fitting = [name for name, served in self.door.served.items() if self.surface.ask in served.takes]
        named = self.socket.query_params.get("model", fitting[0] if len(fitting) == 1 else "")
        if not named:
            what = f"say which model with ?model=, one of {', '.join(sorted(fitting)) or 'none'}"
            raise Refusal(404, "model_not_found", what, param="model")
        return self.find(named)

    async def accept(self) -> None:
        """Begin to speak."""
        await self.socket.accept(agreed(self.socket.scope.get("subprotocols", ())))
        task = asyncio.current_task()
        assert task is not None, "a server runs in tasks"
        self._listener = asyncio.create_task(self._listen(task))

    async def _listen(self, task: asyncio.Task[Any]) -> None:
        while (message := await self.socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            async with self._moved:
                self._inbox.append(message["bytes"] if text is None else text)
                self._moved.notify_all()
                await self._moved.wait_for(self._has_room)
        self.is_gone = True
        task.cancel()

    def _has_room(self) -> bool:
        return len(self._inbox) < _BEHIND and sum(map(sys.getsizeof, self._inbox)) < _BEHIND_BYTES

    async def heard(self) -> str | bytes:
        """What the client says next. Raises Refusal when it has been silent for too long."""
        try:
            async with asyncio.timeout(self.door.limits.idle_s), self._moved:
                await self._moved.wait_for(lambda: self._inbox)
                said = self._inbox.popleft()
                self._moved.notify_all()
                return said
        except TimeoutError:
            what = f"nothing was said for {self.door.limits.idle_s:g} s"
            raise Refusal(408, "idle", what) from None

    async def tell(self, message: str | bytes) -> None:
        """Say something. To who has hung up, nothing is said; the call notices that by itself."""
        if self.socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await (self.socket.send_text(message) if isinstance(message, str) else self.socket.send_bytes(message))

    async def hang_up(self, code: int = 1000, reason: str = "") -> None:
        """End it, unless the client has."""
        if self.socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await self.socket.close(code, reason)

    @contextmanager
    def opened(self, served: Served, *asks: Any) -> Generator[Live]:
        """Have requests served, for as long as it is held."""
        live = self.door.open(served, *asks, by=self.passage)
        try:
            yield live
        finally:
            live.close()

    async def refuse(self, refusal: Refusal) -> None:
        """End it, with the reason."""
        if self.socket.application_state is not WebSocketState.CONNECTING:
            await self.hang_up(1011 if refusal.status >= 500 else 1008, refusal.code)
        elif "websocket.http.response" in self.socket.scope.get("extensions", {}):
            await self.socket.send_denial_response(answered(refusal.content, refusal.status, refusal.headers))
        else:
            await self.socket.close(1008, refusal.code)

    def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.cancel()


class Caller:
    """A surface over WebSockets as an application of its own."""

    def __init__(self, door: Door, surface: Surface) -> None:
        self._door = door
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        passage: Passage = scope["passage"]
        call = Call(self._door, self._surface, passage, WebSocket(scope, receive, send))
        handle = cast("Callable[[Call], Awaitable[None]]", self._surface.handle)
        try:
            passage.arrive(self._surface, call.socket.headers.get(HEADER, ""))
            await handle(call)
        except asyncio.CancelledError:
            if not call.is_gone:  # somebody else wants the end
                raise
            task = asyncio.current_task()
            assert task is not None, "a server runs in tasks"
            task.uncancel()
        except WebSocketDisconnect:
            pass  # it hung up while something was sent
        except Refusal as refusal:
            await call.refuse(refusal)
        finally:
            call.close()


def line(path: str, handle: Callable[[Call], Awaitable[None]], ask: type) -> Surface:
    """A surface that is spoken to over a WebSocket."""
    return Surface(METHOD, path, cast("Any", handle), ask)
