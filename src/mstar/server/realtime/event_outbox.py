"""Server events of a realtime session, in order, also over several connections of its client.

A client that opens its session with `?resume_timeout_s=N` can come back within N seconds after its connection was lost:

1. The session keeps the latest events. Without a connection it continues; responses pause when too many events wait.
2. The client connects with `?session_id=…&last_event_id=…`. A new connection replaces one that seems to be alive.
3. It gets `session.resumed` with the number of its own events that have arrived, then every event after the last one
   that it has. It sends its later events again.

A connection that the client closes ends the session at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.websockets import WebSocket

from mstar.server.access.browser_auth import negotiated_subprotocol
from mstar.server.errors import ApiError
from mstar.server.realtime.conversation import new_id
from mstar.server.websocket_session import WebSocketSession

MAX_RESUME_TIMEOUT_S = 300.0
"""Maximum seconds for which a session waits for its client."""
MAX_KEPT_BYTES = 1 << 20
"""Bytes of sent events that a resumable session keeps, and as many bytes of events that wait: 16 s of audio each."""


class EventLog:
    """The latest events, and which of them were handed to a connection."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, str]] = deque()
        """Id and JSON."""
        self._next = 0
        """Index of the first event that was not handed over."""
        self._sent_bytes = self._unsent_bytes = 0
        self._last_dropped_id = ""

    def append(self, event_id: str, message: str) -> None:
        """Add an event."""
        self._events.append((event_id, message))
        self._unsent_bytes += len(message)

    @property
    def is_full(self) -> bool:
        """Whether the events that were not handed over are too many to add another one."""
        return self._unsent_bytes > MAX_KEPT_BYTES

    def take(self) -> str | None:
        """The next event for the connection. The oldest ones that were handed over are dropped if they are too many."""
        if self._next == len(self._events):
            return None
        _, message = self._events[self._next]
        self._next += 1
        self._sent_bytes += len(message)
        self._unsent_bytes -= len(message)
        while self._sent_bytes > MAX_KEPT_BYTES:
            self._last_dropped_id, dropped = self._events.popleft()
            self._next -= 1
            self._sent_bytes -= len(dropped)
        return message

    def index_after(self, event_id: str) -> int:
        """Index of the event after this one; of the first event without an id. Raises ApiError if it is not kept."""
        if event_id == self._last_dropped_id:
            return 0
        for index, (kept, _) in enumerate(self._events):
            if kept == event_id:
                return index + 1
        message = f"last_event_id: {event_id[:64]!r} is not among the latest events. fix: open a new session"
        raise ApiError(400, "event_not_found", message, param="last_event_id")

    def rewind(self, index: int) -> None:
        """Hand over the events from this one on again."""
        sizes = [len(message) for _, message in self._events]
        self._next, self._sent_bytes, self._unsent_bytes = index, sum(sizes[:index]), sum(sizes[index:])


class EventOutbox:
    """Sends the events of one session to the connection that its client has."""

    def __init__(self, websocket: WebSocketSession, describe: Callable[[], dict[str, Any]]) -> None:
        """`describe` returns the `session` object of events."""
        self._websocket = websocket
        self._describe = describe
        self._log: EventLog | None = None
        self._order = asyncio.Lock()

    def keep(self) -> None:
        """Keep events, so that the session can be resumed. Raises ApiError without memory for them."""
        self._websocket.memory.add(2 * MAX_KEPT_BYTES)
        self._log = EventLog()

    async def send(self, event_id: str, message: str) -> None:
        """Send an event, or keep it while there is no connection."""
        if self._log is None:
            await self._websocket.send(message)
            return
        self._log.append(event_id, message)
        await self._deliver(self._log)
        while self._log.is_full and not self._websocket.is_attached:
            await self._websocket.wait_attached()
            await self._deliver(self._log)

    async def _deliver(self, log: EventLog) -> None:
        async with self._order:
            while self._websocket.is_attached and (message := log.take()) is not None:
                await self._websocket.send(message)

    async def resume(self, socket: WebSocket, last_event_id: str) -> None:
        """Serve the session over this connection until it ends or is replaced. Raises ApiError before the handshake."""
        assert self._log is not None, "only sessions that keep events can be found"
        self._log.index_after(last_event_id)
        await socket.accept(negotiated_subprotocol(socket.scope.get("subprotocols", ())))
        async with self._order:
            self._log.rewind(self._log.index_after(last_event_id))
            received_events, is_connected = await self._websocket.attach(socket)
            fields = {"session": self._describe(), "received_events": received_events}
            await self._websocket.send(_encode({"type": "session.resumed", "event_id": new_id("event"), **fields}))
        await self._deliver(self._log)
        await asyncio.wait([is_connected])


def _encode(content: dict[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
