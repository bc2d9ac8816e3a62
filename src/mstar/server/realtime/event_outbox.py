"""Server events of a realtime session, in order, also over several connections of its client.

A client that opens its session with `?resume_timeout_s=N` can come back within N seconds after its connection was lost:

1. The session keeps the latest events. Without a connection it continues; responses pause when too many events wait.
2. The client connects with `?session_id=…&last_event_id=…`. A new connection replaces one that seems to be alive.
3. It gets `session.resumed` with the number of its own events that have arrived, then every event after the last one
   that it has. It sends its later events again.

A task of each connection hands the events over, not the tasks that send them: a response that is cancelled while it
waits for a slow client loses no event, and a connection that takes nothing any more does not hold up its successor.

A connection that the client closes ends the session at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.websockets import WebSocket

from mstar.server.access.browser_auth import negotiated_subprotocol
from mstar.server.realtime.conversation import new_id
from mstar.server.realtime.event_log import MAX_KEPT_BYTES, EventLog
from mstar.server.realtime.open_sessions import session_not_found
from mstar.server.websocket_session import WebSocketSession

MAX_RESUME_TIMEOUT_S = 300.0
"""Maximum seconds for which a session waits for its client."""


class EventOutbox:
    """Sends the events of one session to the connection that its client has."""

    def __init__(self, websocket: WebSocketSession, session_id: str, describe: Callable[[], dict[str, Any]]) -> None:
        """`describe` returns the `session` object of events."""
        self._websocket = websocket
        self._session_id = session_id
        self._describe = describe
        self._log: EventLog | None = None
        self._appended, self._progressed = asyncio.Event(), asyncio.Event()
        self._delivery: asyncio.Task[None] | None = None
        """Hands events to the present connection, or to one that was lost until another one comes."""
        self._is_closed = False

    def keep(self) -> None:
        """Keep events, so that the session can be resumed. Raises ApiError without memory for them."""
        self._websocket.memory.add(2 * MAX_KEPT_BYTES)
        self._log = EventLog()
        self._delivery = asyncio.create_task(self._deliver(self._log))

    def close(self) -> None:
        """The session has ended: it cannot be resumed any more."""
        self._is_closed = True
        if self._delivery is not None:
            self._delivery.cancel()

    @property
    def is_connected(self) -> bool:
        """Whether the client has a connection, as far as the server knows."""
        return self._websocket.is_attached

    async def send(self, event_id: str, message: bytes) -> None:
        """Send an event. Without a connection it is kept, and this waits if too many are."""
        log = self._log
        if log is None:
            await self._websocket.send(message.decode())
            return
        log.append(event_id, message)
        self._appended.set()
        while log.is_full or (self.is_connected and log.unsent is not None):
            self._progressed.clear()
            await self._progressed.wait()

    async def _deliver(self, log: EventLog, greeting: bytes = b"") -> None:
        if greeting:
            await self._websocket.send(greeting.decode())
        while True:
            self._appended.clear()
            while self.is_connected and (message := log.unsent) is not None:
                await self._websocket.send(message.decode())
                log.advance()
                self._progressed.set()
            self._progressed.set()  # without a connection, who waits for one needs to know
            await self._appended.wait()

    async def resume(self, socket: WebSocket, last_event_id: str) -> None:
        """Serve the session over this connection until it ends or is replaced. Raises ApiError before the handshake."""
        if self._log is None:
            raise session_not_found(self._session_id)
        self._log.index_after(last_event_id)
        await socket.accept(negotiated_subprotocol(socket.scope.get("subprotocols", ())))
        is_connected = self._attach(self._log, socket, last_event_id)
        self._websocket.state.metrics.realtime_resumes.inc()
        await asyncio.wait([is_connected])

    def _attach(self, log: EventLog, socket: WebSocket, last_event_id: str) -> asyncio.Task[None]:
        """Take the connection over, in one step of the event loop. Raises ApiError if that is too late."""
        if self._is_closed or self._websocket.is_disconnected:
            raise session_not_found(self._session_id)
        log.rewind(log.index_after(last_event_id))
        assert self._delivery is not None, "set by `keep`"
        self._delivery.cancel()
        is_connected = self._websocket.attach(socket)
        fields = {"session": self._describe(), "received_events": self._websocket.received_messages}
        greeting = msgspec.json.encode({"type": "session.resumed", "event_id": new_id("event"), **fields})
        self._delivery = asyncio.create_task(self._deliver(log, greeting))
        return is_connected
