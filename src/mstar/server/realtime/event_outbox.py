"""Server events of a realtime session, in order, also over several connections of its client.

A client that opens its session with `?resume_timeout_s=N` can come back within N seconds after its connection was lost:

1. The session keeps the latest events. Without a connection it continues; responses pause when too many events wait.
2. The client connects with `?session_id=…&last_event_id=…`. A new connection replaces one that seems to be alive.
3. It gets `session.resumed` with the number of its own events that have arrived, then every event after the last one
   that it has. It sends its later events again.

A task of each connection hands the events over, not the tasks that send them: a response that is cancelled while it
waits for a slow client loses no event, and a connection that takes nothing any more does not hold up its successor.

A connection that the client closes ends the session at once.

With a backup (see `backup`), another server can continue the session. Events are then made in steps. Those of a step
wait until the copy has them and the state after the step; only then they are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.websockets import WebSocket

from mstar.server.access.browser_auth import negotiated_subprotocol
from mstar.server.realtime.conversation import new_id
from mstar.server.realtime.event_log import MAX_KEPT_BYTES, EventLog
from mstar.server.realtime.open_sessions import session_not_found
from mstar.server.websocket_session import WebSocketSession

MAX_RESUME_TIMEOUT_S = 300.0
"""Maximum seconds for which a session waits for its client."""


class EventBackup(Protocol):
    """Keeps a copy of a session at another server."""

    @property
    def unstored(self) -> int:
        """Number of steps that the copy does not have yet."""
        ...

    def commit(self, events: list[tuple[str, bytes]]) -> None:
        """A step has ended, with these events: store it, then call `on_stored` of the outbox with them."""
        ...


class EventOutbox:
    """Sends the events of one session to the connection that its client has. As a context, it is one step."""

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
        self._backup: EventBackup | None = None
        self._open_steps = 0
        self._staged: list[tuple[str, bytes]] = []
        """Events of the steps that are open."""

    def keep(self) -> None:
        """Keep events, so that the session can be resumed. Raises ApiError without memory for them."""
        self._websocket.memory.add(2 * MAX_KEPT_BYTES)
        self._log = EventLog()
        self._delivery = asyncio.create_task(self._deliver(self._log))

    def back_up(self, backup: EventBackup) -> None:
        """From now on, send an event after this backup has it."""
        self._backup = backup

    async def take_over(self, events: Sequence[tuple[str, bytes]], last_event_id: str) -> None:
        """Continue a session of another server that has made these events. Raises ApiError before the handshake."""
        log = EventLog(events)
        log.rewind(log.index_after(last_event_id))
        self._websocket.memory.add(2 * MAX_KEPT_BYTES)
        self._log = log  # a response that resumes can make events before the handshake is complete
        await self._websocket.accept()
        self._delivery = asyncio.create_task(self._deliver(log, self._greeting()))

    # ---------------------------------------------------------------- steps
    async def __aenter__(self) -> None:
        self._open_steps += 1

    async def __aexit__(self, *_: object) -> None:
        self._open_steps -= 1
        if self._backup is None or self._open_steps:
            return
        events, self._staged = self._staged, []
        self._backup.commit(events)
        if events and self._log is not None:
            await self._wait_delivered(self._log)

    def on_stored(self, events: Sequence[tuple[str, bytes]]) -> None:
        """The backup has the step that made these events: send them."""
        assert self._log is not None, "only sessions that can be resumed have a backup"
        for event_id, message in events:
            self._log.append(event_id, message)
        self._appended.set()
        self._progressed.set()

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
        if self._backup is not None:
            async with self:
                self._staged.append((event_id, message))
            return
        log.append(event_id, message)
        self._appended.set()
        await self._wait_delivered(log)

    async def _wait_delivered(self, log: EventLog) -> None:
        """Wait until the events are handed over; without a connection until there is room for more."""
        while log.is_full or (self.is_connected and (log.unsent is not None or self._has_unstored)):
            self._progressed.clear()
            await self._progressed.wait()

    @property
    def _has_unstored(self) -> bool:
        return self._backup is not None and self._backup.unstored > 0

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
        self._delivery = asyncio.create_task(self._deliver(log, self._greeting()))
        return is_connected

    def _greeting(self) -> bytes:
        fields = {"session": self._describe(), "received_events": self._websocket.received_messages}
        return msgspec.json.encode({"type": "session.resumed", "event_id": new_id("event"), **fields})
