"""Connections to the servers that can keep copies of the sessions of this one.

There is one to each server, and the first that works gets the updates. When it is lost or does not answer in time, the
next one gets the whole sessions. Without any, sessions continue without copies: a call goes on, but can only be resumed
here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import WebSocketException

from mstar.server.realtime.backup.messages import (
    FromBackup,
    SessionEnded,
    SessionTaken,
    TakeSession,
    ToBackup,
    UpdateResult,
    decode_from_backup,
    encode,
    to_chunks,
)
from mstar.server.realtime.backup.session_backup import SessionBackup
from mstar.server.realtime.backup.session_copy import SessionKey, SessionUpdate
from mstar.server.realtime.backup.stored_copies import Outcome

PATH = "/internal/session-backup"
CONNECT_TIMEOUT_S = 1.0
RECONNECT_INTERVAL_S = 0.5
STORE_TIMEOUT_S = 0.5
"""Seconds to wait for the result of an update before another server gets the sessions. Events wait meanwhile."""
LAST_STORE_TIMEOUT_S = 3.0
"""The same if no other server is connected: without a copy, the loss of this server ends the sessions."""
CHECK_INTERVAL_S = 0.1
TAKE_TIMEOUT_S = 3.0
"""Seconds to wait for the servers that can have a session when its client has connected here."""
PING_INTERVAL_S = 1.0
ERRORS = (OSError, WebSocketException, TimeoutError, msgspec.DecodeError)

log = logging.getLogger("mstar.serve")


class BackupConnection:
    """Connection to one server, again and again."""

    def __init__(self, url: str, key: str, backups: BackupConnections) -> None:
        self.url = url
        self._key = key
        self._backups = backups
        self.is_tried = False
        """Whether a connection was made, or could not be made."""
        self._socket: ClientConnection | None = None
        self._outgoing: asyncio.Queue[ToBackup] = asyncio.Queue()
        self._awaited: deque[tuple[float, SessionBackup]] = deque()
        """Sessions whose updates have no result yet, with the time of the update, in order."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    def send(self, message: ToBackup) -> None:
        """Send a message that has no result."""
        self._outgoing.put_nowait(message)

    def send_update(self, backup: SessionBackup, update: SessionUpdate) -> None:
        """Send an update of a session."""
        self._awaited.append((time.monotonic(), backup))
        self._outgoing.put_nowait(update)

    def is_late(self, now: float, timeout_s: float) -> bool:
        """Whether a result is overdue."""
        return bool(self._awaited) and now - self._awaited[0][0] > timeout_s

    def abort(self) -> None:
        """Give the connection up."""
        if self._socket is not None:
            self._socket.transport.abort()
            self._on_lost()

    async def run(self) -> None:
        """Keep the connection."""
        while True:
            with suppress(*ERRORS):
                await self._serve()
            self.is_tried = True
            self._backups.on_tried()
            await asyncio.sleep(RECONNECT_INTERVAL_S * random.uniform(0.5, 1.0))

    async def _serve(self) -> None:
        socket = await _connect(self.url, self._key)
        self._outgoing, self._socket = asyncio.Queue(), socket
        sending = asyncio.create_task(self._send_all(socket))
        try:
            self._backups.on_connected(self)
            while True:
                self._on_message(decode_from_backup(await socket.recv(decode=False)))
        finally:
            sending.cancel()
            socket.transport.abort()
            if self._socket is socket:
                self._on_lost()
            await asyncio.wait([sending])
            await socket.wait_closed()

    async def _send_all(self, socket: ClientConnection) -> None:
        with suppress(*ERRORS):  # the receiver notices it too
            while True:
                for chunk in to_chunks(encode(await self._outgoing.get())):
                    await socket.send(chunk)

    def _on_message(self, message: FromBackup) -> None:
        if isinstance(message, UpdateResult) and self._awaited:
            self._backups.on_result(self._awaited.popleft()[1], message.outcome)

    def _on_lost(self) -> None:
        self._socket = None
        self._awaited.clear()
        self._backups.on_lost(self)


class BackupConnections:
    """All connections of one front end, and the sessions that it has. For one event loop."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._key = key
        self._connections = [BackupConnection(url, key, self) for url in urls]
        self._active: BackupConnection | None = None
        self._sessions: dict[SessionBackup, None] = {}
        self._tried = asyncio.Event()
        self.on_tried()  # without servers, there is nothing to wait for

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        running = [asyncio.create_task(connection.run()) for connection in self._connections]
        late: BackupConnection | None = None
        try:
            while True:
                await asyncio.sleep(CHECK_INTERVAL_S)
                # Twice in a row: after a pause of this process, results that have arrived are read between two checks.
                was_late, late = late, self._late_connection(time.monotonic())
                if late is not None and late is was_late:
                    log.warning("the session backup %s does not answer in time", late.url)
                    late.abort()
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _late_connection(self, now: float) -> BackupConnection | None:
        """The connection that gets the updates, if the result of one is overdue."""
        has_other = any(other.is_connected for other in self._connections if other is not self._active)
        timeout_s = STORE_TIMEOUT_S if has_other else LAST_STORE_TIMEOUT_S
        return self._active if self._active is not None and self._active.is_late(now, timeout_s) else None

    async def wait_tried(self) -> None:
        """Wait until a server is connected, or none can be: a session that is taken over gets a copy at once."""
        await self._tried.wait()

    @property
    def stored(self) -> int:
        """Number of sessions of this server that have a copy."""
        return sum(backup.is_stored for backup in self._sessions)

    # ---------------------------------------------------------------- sessions
    def add(self, backup: SessionBackup) -> None:
        """Keep a copy of a session from now on."""
        self._sessions[backup] = None
        self._send_whole(backup)

    def remove(self, backup: SessionBackup, *, has_ended: bool) -> None:
        """Stop; a session that has ended needs no copy any more."""
        del self._sessions[backup]
        if has_ended and self._active is not None and backup.is_stored:
            self._active.send(SessionEnded(backup.copy.key, backup.copy.epoch))

    def send(self, backup: SessionBackup, update: SessionUpdate) -> None:
        """Send an update, then call `confirm`, also if there is no connection."""
        if self._active is None or backup.is_refused:
            backup.confirm_all()
        else:
            self._active.send_update(backup, update)

    def _send_whole(self, backup: SessionBackup) -> None:
        if self._active is not None and (update := backup.restart()) is not None:
            self._active.send_update(backup, update)

    # ---------------------------------------------------------------- connections
    def on_connected(self, connection: BackupConnection) -> None:
        """A connection was made."""
        self._tried.set()
        if self._active is None:
            self._activate(connection)

    def on_tried(self) -> None:
        """A connection could not be made, or was lost."""
        if all(connection.is_tried for connection in self._connections):
            self._tried.set()

    def on_lost(self, connection: BackupConnection) -> None:
        """A connection was lost."""
        if self._active is not connection:
            return
        self._active = None
        following = next((other for other in self._connections if other.is_connected), None)
        if following is not None:
            self._activate(following)
            return
        if self._sessions:
            log.warning("no session backup can be reached: %d sessions have no copies", len(self._sessions))
        for backup in [*self._sessions]:
            backup.confirm_all()

    def _activate(self, connection: BackupConnection) -> None:
        self._active = connection
        log.info("copies of realtime sessions are kept by %s", connection.url)
        for backup in self._sessions:
            self._send_whole(backup)

    def on_result(self, backup: SessionBackup, outcome: Outcome) -> None:
        """The result of the oldest update under way."""
        match outcome:
            case Outcome.STORED:
                backup.is_stored = True
                backup.confirm()
            case Outcome.FENCED:
                backup.fence()
            case Outcome.REFUSED:
                backup.is_refused = True
                backup.confirm_all()

    def take_all(self, key: SessionKey, epoch: int) -> list[Coroutine[Any, Any, SessionTaken | None]]:
        """Ask each other server for its copy of a session, or for the session itself: they do not continue it."""
        return [take_session(connection.url, self._key, TakeSession(key, epoch)) for connection in self._connections]


async def take_session(url: str, key: str, request: TakeSession) -> SessionTaken | None:
    """Ask one server, or another front end by the path of its Unix socket; None if it does not answer in time."""
    with suppress(*ERRORS):
        async with asyncio.timeout(TAKE_TIMEOUT_S), await _connect(url, key) as socket:
            for chunk in to_chunks(encode(request)):
                await socket.send(chunk)
            reply = decode_from_backup(await socket.recv(decode=False))
            return reply if isinstance(reply, SessionTaken) else None
    return None


async def _connect(url: str, key: str) -> ClientConnection:
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {key}"},
        "compression": None,
        "max_size": None,
        "open_timeout": CONNECT_TIMEOUT_S,
        "ping_interval": PING_INTERVAL_S,
        "ping_timeout": PING_INTERVAL_S,
        "close_timeout": PING_INTERVAL_S,
        "user_agent_header": None,
    }
    if url.startswith("/"):
        return await unix_connect(url, f"ws://localhost{PATH}", **options)
    return await connect(f"{url.rstrip('/').replace('http', 'ws', 1)}{PATH}", **options)
