"""Open realtime sessions of one front end: their number per API key, and each one by its id, for its client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec
from prometheus_client import Gauge
from starlette.websockets import WebSocket

from mstar.server.errors import ApiError

RETRY_AFTER_S = 5.0
"""Retry-After, in seconds, of a client that has too many sessions."""


class SessionConnection(Protocol):
    """The connection of a session. Its client can come back if it is lost and the session is resumable."""

    @property
    def is_connected(self) -> bool:
        """Whether there is one."""
        ...

    async def resume(self, socket: WebSocket, last_event_id: str) -> None:
        """Serve the session over this connection until that one ends, too. Raises ApiError before the handshake."""
        ...


class OpenSession(NamedTuple):
    """A session that has not ended."""

    model: str
    connection: SessionConnection
    save: Callable[[], Awaitable[msgspec.Struct]]
    """Returns the session for a file. Raises ApiError."""
    hand_over: Callable[[int], msgspec.Struct | None] | None = None
    """Ends the session here, and returns all of it for a server that takes it over with an epoch. None if it cannot
    continue elsewhere."""


class OpenSessions:
    """The sessions of a front end. Those with a backup can move to another one."""

    def __init__(self, max_sessions: int) -> None:
        """`max_sessions` of each tenant."""
        self._max_sessions = max_sessions
        self._counts: Counter[str] = Counter()
        self._sessions: dict[tuple[str, str], OpenSession] = {}

    @contextmanager
    def count(self, tenant: str) -> Generator[None]:
        """Count a session against the limit of its tenant. Raises ApiError."""
        limit = self._max_sessions
        if self._counts[tenant] >= limit:
            message = f"this API key has {limit} realtime sessions, which is the limit. fix: close one first"
            raise ApiError(429, "too_many_sessions", message, retry_after=RETRY_AFTER_S)
        self._counts[tenant] += 1
        try:
            yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    @contextmanager
    def register(self, tenant: str, session_id: str, session: OpenSession) -> Generator[None]:
        """Let the client find a session by its id."""
        self._sessions[tenant, session_id] = session
        try:
            yield
        finally:
            self.remove(tenant, session_id, session.connection)

    def remove(self, tenant: str, session_id: str, connection: SessionConnection) -> None:
        """The client cannot find a session any more, unless it is open again with another connection."""
        opened = self._sessions.get((tenant, session_id))
        if opened is not None and opened.connection is connection:
            del self._sessions[tenant, session_id]

    def find(self, tenant: str, session_id: str) -> OpenSession | None:
        """A session of this tenant; None if it is not open here."""
        return self._sessions.get((tenant, session_id))

    def export(self, gauge: Gauge) -> None:
        """Show the number of sessions in a metric, by whether they have a connection."""
        gauge.labels("lost").set_function(self._count_lost)
        gauge.labels("connected").set_function(lambda: self._counts.total() - self._count_lost())

    def _count_lost(self) -> int:
        return sum(not session.connection.is_connected for session in self._sessions.values())


def session_not_found(session_id: str) -> ApiError:
    """The error of a client that comes back too late."""
    message = f"session_id: {session_id[:64]!r} has ended, or cannot be resumed. fix: open a new session"
    return ApiError(404, "not_found", message, param="session_id")
