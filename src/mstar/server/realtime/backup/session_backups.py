"""Session backups of one front end: the copies that it keeps for other servers, and those that they keep for it.

The connections between servers are WebSockets at an internal path of the public port, with a key that only the servers
have. It serves them in a middleware: they are no requests of clients, and have no limits, traces or logs of these.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from mstar.errors import LoadError
from mstar.server.frontends.siblings import Siblings
from mstar.server.inputs.memory_budget import MemoryBudget
from mstar.server.realtime.backup.connections import PATH, BackupConnections, take_session
from mstar.server.realtime.backup.messages import (
    ChunkReader,
    SessionEnded,
    SessionTaken,
    TakeSession,
    UpdateResult,
    decode_to_backup,
    encode,
)
from mstar.server.realtime.backup.session_copy import SessionCopy, SessionKey, SessionUpdate
from mstar.server.realtime.backup.stored_copies import StoredCopies
from mstar.server.realtime.open_sessions import OpenSessions

EXPIRY_INTERVAL_S = 5.0
"""Seconds between two checks for copies whose client did not come back."""
MIN_KEY_CHARS = 16
"""Minimum length of the key of the servers."""


def read_backup_key(path: str) -> str:
    """The key that servers with copies of each other's sessions share. Raises LoadError."""
    fix = "write one random key to a file on every server, and pass it as --session-backup-key-file"
    try:
        key = Path(path).read_text().strip() if path else ""
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read: {error}\n  fix: {fix}") from error
    if len(key) < MIN_KEY_CHARS:
        problem = f"{path}: the key has {len(key)} characters" if path else "--session-backup needs a key"
        raise LoadError(f"{problem}, the minimum is {MIN_KEY_CHARS}\n  fix: {fix}")
    return key


class Takeover(NamedTuple):
    """What the servers have of a session whose client has connected here."""

    copy: SessionCopy | None
    """A copy with which its client can continue, the newest one if there is none, or None."""
    unanswered: int
    """Number of servers and front ends that did not answer: they can have a newer copy, or the only one."""


class SessionBackups:
    """Both roles of one front end."""

    def __init__(self, urls: tuple[str, ...], key: str, memory: MemoryBudget, sessions: OpenSessions) -> None:
        self.connections = BackupConnections(urls, key)
        self.copies = StoredCopies(memory.reserve, memory.release)
        self.siblings: Siblings | None = None
        self._key = key
        self._sessions = sessions
        self._taking: set[asyncio.Task[SessionTaken | None]] = set()
        """Requests to servers on which no takeover waits any more."""

    async def run(self) -> None:
        """Run until cancelled."""
        connecting = asyncio.create_task(self.connections.run())
        try:
            while True:
                self.copies.expire(time.monotonic())
                await asyncio.sleep(EXPIRY_INTERVAL_S)
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])

    async def take_over(self, key: SessionKey, last_event_id: str) -> Takeover:
        """Take a session over from the server or front end that has it, or from a copy.

        All servers are asked, but the first copy that has the last event of the client is enough: a host that is lost
        does not answer. Without an answer of each server, an older copy is not continued.
        """
        await self.connections.wait_tried()
        epoch = time.time_ns() // 1000
        taken, known = await self._take_once(key, epoch, last_event_id)
        if taken.copy is None and known > epoch:  # the clock of this server is slow
            epoch = known + 1
            taken, _ = await self._take_once(key, epoch, last_event_id)
        if taken.copy is not None:
            taken.copy.epoch = epoch
        return taken

    async def _take_once(self, key: SessionKey, epoch: int, last_event_id: str) -> tuple[Takeover, int]:
        replies, unanswered = [self._take_here(key, epoch)], 0
        copy = newest_copy(replies)
        pending = {asyncio.create_task(take) for take in self._take_elsewhere(key, epoch)}
        self._taking |= pending
        while pending and (copy is None or not copy.has_event(last_event_id)):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers = [reply for task in done if (reply := task.result()) is not None]
            replies, unanswered = replies + answers, unanswered + len(done) - len(answers)
            copy = newest_copy(replies)
        self._taking = {task for task in self._taking if not task.done()}
        return Takeover(copy, unanswered), max(reply.epoch for reply in replies)

    def _take_elsewhere(self, key: SessionKey, epoch: int) -> list[Coroutine[Any, Any, SessionTaken | None]]:
        return [*self._take_from_siblings(key, epoch), *self.connections.take_all(key, epoch)]

    def _take_here(self, key: SessionKey, epoch: int) -> SessionTaken:
        """Let another server or front end have a session that is here, or its copy."""
        opened, session = self._sessions.find(*key), None
        if opened is not None and opened.hand_over is not None:
            session = cast("SessionUpdate | None", opened.hand_over(epoch))
        if session is not None:  # kept like a copy: if this reply is lost, the client comes back for it
            self.copies.store(session)
        taken = self.copies.take(time.monotonic(), key, epoch)
        if session is None and taken.copy is not None:
            session = taken.copy.whole()
        return SessionTaken(session, taken.epoch)

    def _take_from_siblings(self, key: SessionKey, epoch: int) -> list[Coroutine[Any, Any, SessionTaken | None]]:
        paths = [] if self.siblings is None else self.siblings.other_sockets
        request = TakeSession(key, epoch, asks_siblings=False)
        return [take_session(str(path), self._key, request) for path in paths]

    # ---------------------------------------------------------------- requests of other servers
    def is_authorized(self, scope: Scope) -> bool:
        """Whether a connection has the key of the servers."""
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(sent, f"Bearer {self._key}".encode())

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serve the connection of another server."""
        keys, chunks = set[SessionKey](), ChunkReader()
        try:
            while (message := await receive())["type"] == "websocket.receive":
                content = chunks.feed(message["bytes"])
                reply = None if content is None else await self._handle(content, keys)
                if reply is not None:
                    await send({"type": "websocket.send", "bytes": encode(reply)})
        finally:
            for key in keys:
                self.copies.on_lost(time.monotonic(), key)

    async def _handle(self, content: bytes, keys: set[SessionKey]) -> UpdateResult | SessionTaken | None:
        match decode_to_backup(content):
            case SessionUpdate() as update:
                keys.add(update.key)
                return UpdateResult(self.copies.store(update))
            case SessionEnded(key=key, epoch=epoch):
                keys.discard(key)
                self.copies.end(key, epoch)
                return None
            case TakeSession(key=key, epoch=epoch, asks_siblings=asks_siblings):
                others = await asyncio.gather(*self._take_from_siblings(key, epoch)) if asks_siblings else []
                replies = [self._take_here(key, epoch), *(reply for reply in others if reply is not None)]
                copy = newest_copy(replies)
                return SessionTaken(copy and copy.whole(), max(reply.epoch for reply in replies))


def newest_copy(replies: Iterable[SessionTaken]) -> SessionCopy | None:
    """The newest copy of several servers."""
    copies = [SessionCopy.from_whole(reply.session) for reply in replies if reply.session is not None]
    return max(copies, key=lambda copy: (copy.epoch, copy.number), default=None)


class SessionBackupMiddleware:
    """ASGI middleware that serves the connections of other servers, and passes everything else on."""

    def __init__(self, app: ASGIApp, backups: SessionBackups) -> None:
        self._app = app
        self._backups = backups

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "websocket" or scope["path"] != PATH or not self._backups.is_authorized(scope):
            await self._app(scope, receive, send)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        with suppress(msgspec.DecodeError, OSError):  # another release, or the other server has left
            await self._backups.serve(receive, send)
