"""Realtime connections that survive the loss of their network: no event of either side is lost or doubled.

`SessionLog` has what one session needs to be resumed, without IO; the connections are for threads and for asyncio. The
reader of events reconnects. Events that are sent meanwhile are kept, and follow in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection as SyncClientConnection
from websockets.sync.client import connect as connect_sync

from mstar.client.errors import ServerBusy, ServerUnreachable, SessionEnded, to_api_error

RESUME_TIMEOUT_S = 60.0
"""Seconds to reconnect in, unless the caller sets them."""
MAX_SENT_BYTES = 16 << 20
"""Bytes of sent events that are kept. A connection has far fewer under way."""
SESSION_MOVED = "session_moved"
"""Reason of the close frame of a session that continues at another server."""
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
CONNECT_TIMEOUT_S = 10.0
PING_INTERVAL_S = 10.0
"""Seconds between two pings, and to wait for the answer: a network that drops everything is noticed by then."""


class SessionLog:
    """The events of one session that can be sent again, and how far it has received."""

    def __init__(self, resume_timeout_s: float, params: Mapping[str, str]) -> None:
        self._opening = {**params, "resume_timeout_s": f"{resume_timeout_s:g}"}
        self._resume_timeout_s = resume_timeout_s
        self._session_id = self._last_event_id = ""
        self._sent: deque[str] = deque()
        self._sent_bytes = 0
        self._dropped: int = 0
        """Number of the oldest events that are not kept."""
        self._next = 0
        """Number of events that were handed to the present connection."""
        self._lost_at = self._backoff_s = 0.0

    # ---------------------------------------------------------------- events of the client
    def record(self, event: Mapping[str, Any]) -> None:
        """Add an event to be sent."""
        message = json.dumps(event)
        self._sent.append(message)
        self._sent_bytes += len(message)

    def next_unsent(self) -> str | None:
        """The next event for the present connection."""
        if self._next == self._dropped + len(self._sent):
            return None
        message = self._sent[self._next - self._dropped]
        self._next += 1
        while self._sent_bytes > MAX_SENT_BYTES and self._dropped < self._next:
            self._sent_bytes -= len(self._sent.popleft())
            self._dropped += 1
        return message

    # ---------------------------------------------------------------- events of the server
    def receive(self, message: str | bytes) -> dict[str, Any] | None:
        """Parse an event for the caller. None for the one that tells what has arrived. Raises SessionEnded."""
        event: dict[str, Any] = json.loads(message)
        self._lost_at = self._backoff_s = 0.0
        if event["type"] == "session.resumed":
            if event["received_events"] < self._dropped:
                raise SessionEnded("the server lacks events that are not kept any more")
            self._next = event["received_events"]
            return None
        if not self._session_id:
            self._session_id, self._next = event["session"]["id"], 0
        self._last_event_id = event["event_id"]
        return event

    # ---------------------------------------------------------------- connections
    @property
    def query(self) -> str:
        """Query of the next connection."""
        resuming = {"session_id": self._session_id, "last_event_id": self._last_event_id}
        return urlencode(resuming if self._session_id else self._opening)

    def raise_unless_lost(self, error: Exception) -> None:
        """Raise an error unless a connection, or a try to connect, ended by a loss after which a retry can help."""
        if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.reason != SESSION_MOVED:
            raise SessionEnded(error.rcvd.reason or f"close code {error.rcvd.code}") from error
        if isinstance(error, InvalidStatus):
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            api_error = to_api_error(
                response.status_code, _decode(response.body), headers.get("x-request-id", ""), headers
            )
            if self._session_id and api_error.code in ("not_found", "event_not_found"):
                raise SessionEnded(api_error.message.partition(". fix:")[0]) from error
            if not isinstance(api_error, ServerBusy):
                raise api_error from error

    def next_backoff(self, error: Exception) -> float:
        """Seconds to wait before the next try. Raises ServerUnreachable when the session has timed out."""
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        if now - self._lost_at > self._resume_timeout_s:
            raise ServerUnreachable(str(error) or type(error).__name__) from error
        seconds, self._backoff_s = self._backoff_s, min(MAX_BACKOFF_S, 2 * self._backoff_s or MIN_BACKOFF_S)
        return seconds * random.uniform(0.5, 1.0)  # spreads the clients of a network that is back


def _decode(body: bytes | bytearray | None) -> Any:
    try:
        return json.loads(body or b"")
    except ValueError:
        return bytes(body or b"").decode(errors="replace")


LOSSES = (OSError, ConnectionClosed, InvalidHandshake)
"""What ends a connection or a try to connect. TimeoutError is an OSError."""
CONNECT_OPTIONS: dict[str, Any] = {
    "compression": None,
    "max_size": None,
    "open_timeout": CONNECT_TIMEOUT_S,
    "ping_interval": PING_INTERVAL_S,
    "ping_timeout": PING_INTERVAL_S,
    "close_timeout": 1.0,
}


def to_websocket_url(http_url: str) -> str:
    """URL of the realtime endpoint of a server."""
    return http_url.rstrip("/").replace("http", "ws", 1) + "/v1/realtime"


class AsyncRealtimeConnection:
    """A realtime session, for asyncio. Read it in one task; `send` can be called in others."""

    def __init__(self, url: str, headers: Mapping[str, str], log: SessionLog) -> None:
        self._url = to_websocket_url(url)
        self._headers = headers
        self._log = log
        self._first_event: dict[str, Any] | None = None
        self._socket: ClientConnection | None = None
        self._order = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncRealtimeConnection:
        self._first_event = await self.recv()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            await self._socket.close()

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an event of the client. Without a connection it is kept for the next one."""
        self._log.record(event)
        await self._flush()

    async def _flush(self) -> None:
        async with self._order:
            socket = self._socket
            with suppress(*LOSSES):  # the reader notices it too, and the next connection gets what is missing
                while (
                    socket is not None and socket is self._socket and (message := self._log.next_unsent()) is not None
                ):
                    await socket.send(message)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self.recv()

    async def recv(self) -> dict[str, Any]:
        """The next event of the server. Reconnects if the connection was lost. Raises ClientError."""
        if self._first_event is not None:
            event, self._first_event = self._first_event, None
            return event
        while True:
            try:
                if self._socket is None:
                    event = await self._connect()
                else:
                    event = self._log.receive(await self._socket.recv())
            except LOSSES as error:
                self._socket = None
                self._log.raise_unless_lost(error)
                await asyncio.sleep(self._log.next_backoff(error))
                continue
            if event is not None:
                return event

    async def _connect(self) -> dict[str, Any] | None:
        """Open or resume the session. Returns its first event, None if it was resumed."""
        socket = await connect(f"{self._url}?{self._log.query}", additional_headers=self._headers, **CONNECT_OPTIONS)
        try:
            event = self._log.receive(await socket.recv())
        except BaseException:
            socket.transport.abort()
            raise
        self._socket = socket
        self._flushing = asyncio.create_task(self._flush())  # not awaited: the server can wait for its reader
        return event


class RealtimeConnection:
    """A realtime session, for threads. Read it in one thread; `send` can be called in others."""

    def __init__(self, url: str, headers: Mapping[str, str], log: SessionLog) -> None:
        self._url = to_websocket_url(url)
        self._headers = headers
        self._log = log
        self._first_event: dict[str, Any] | None = None
        self._socket: SyncClientConnection | None = None
        self._order = threading.Lock()

    def __enter__(self) -> RealtimeConnection:
        self._first_event = self.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            self._socket.close()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event of the client. Without a connection it is kept for the next one."""
        with self._order:
            self._log.record(event)
        self._flush()

    def _flush(self) -> None:
        with self._order:
            socket = self._socket
            with suppress(*LOSSES):  # the reader notices it too, and the next connection gets what is missing
                while (
                    socket is not None and socket is self._socket and (message := self._log.next_unsent()) is not None
                ):
                    socket.send(message)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self.recv()

    def recv(self) -> dict[str, Any]:
        """The next event of the server. Reconnects if the connection was lost. Raises ClientError."""
        if self._first_event is not None:
            event, self._first_event = self._first_event, None
            return event
        while True:
            try:
                event = self._connect() if self._socket is None else self._log.receive(self._socket.recv())
            except LOSSES as error:
                self._socket = None
                self._log.raise_unless_lost(error)
                time.sleep(self._log.next_backoff(error))
                continue
            if event is not None:
                return event

    def _connect(self) -> dict[str, Any] | None:
        """Open or resume the session. Returns its first event, None if it was resumed."""
        connecting = cast("Any", connect_sync)(
            f"{self._url}?{self._log.query}", additional_headers=self._headers, **CONNECT_OPTIONS
        )
        socket: SyncClientConnection = connecting.__enter__()
        try:
            message = socket.recv()
            with self._order:
                event = self._log.receive(message)
                self._socket = socket
        except BaseException:
            socket.socket.close()
            raise
        threading.Thread(target=self._flush, daemon=True).start()  # the server can wait for its reader
        return event
