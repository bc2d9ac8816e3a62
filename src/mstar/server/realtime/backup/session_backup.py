"""Session replication: makes the updates of one session of this server, and knows which events its copy has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from mstar.server.errors import ApiError
from mstar.server.realtime.backup.session_copy import Event, SessionCopy, SessionUpdate
from mstar.server.shutdown import SESSION_MOVED

MAX_UNSAVED_STEPS = 50
"""Steps without an event after which the copy is updated: after a takeover, the client sends their messages again."""


class Backups(Protocol):
    """The connections of this server to those that keep its copies."""

    def add(self, backup: SessionBackup) -> None:
        """Keep a copy of a session from now on."""
        ...

    def remove(self, backup: SessionBackup, *, has_ended: bool) -> None:
        """Stop; a session that has ended needs no copy any more."""
        ...

    def send(self, backup: SessionBackup, update: SessionUpdate) -> None:
        """Send an update, then call `confirm`, also if there is no connection."""
        ...


class SessionBackup:
    """Backup of one session, until its block ends.

    An event is not sent to the client before the copy has it. A session that ends with the error
    SESSION_MOVED leaves its copy: the client continues it there.
    """

    def __init__(
        self,
        backups: Backups,
        copy: SessionCopy,
        make_update: Callable[[SessionCopy, Sequence[Event]], SessionUpdate],
        on_stored: Callable[[Sequence[Event]], None],
        on_taken: Callable[[], None],
    ) -> None:
        """`make_update` encodes what has changed; `on_taken` ends the session here, as another server has it."""
        self.copy = copy
        """The last state of the session that was sent."""
        self.is_stored = False
        """Whether another server has a copy, maybe without the last updates."""
        self.is_refused = False
        """Whether the server that keeps copies has no memory for this one."""
        self._backups = backups
        self._make_update = make_update
        self._on_stored = on_stored
        self._on_taken = on_taken
        self._unstored: deque[list[Event]] = deque()
        """Events of the updates that are under way."""
        self._unsaved_steps = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        self._backups.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        has_moved = self._is_closed or (isinstance(error, ApiError) and error.code == SESSION_MOVED)
        self._is_closed = True
        self._backups.remove(self, has_ended=not has_moved)

    @property
    def unstored(self) -> int:
        """Number of updates that are under way."""
        return len(self._unstored)

    def commit(self, events: list[Event]) -> None:
        """A step of the session has ended, with these events."""
        self._unsaved_steps += 1
        if self._is_closed or (not events and self._unsaved_steps < MAX_UNSAVED_STEPS):
            return
        self._unsaved_steps = 0
        update = self._make_update(self.copy, events)
        self.copy.apply(update)
        self._unstored.append(events)
        self._backups.send(self, update)

    def restart(self) -> SessionUpdate | None:
        """The whole session for another connection; its confirmation is that of all updates under way."""
        self.is_refused = False
        if self.copy.number < 0:  # nothing has happened
            return None
        self._unstored = deque([[event for events in self._unstored for event in events]])
        return self.copy.whole()

    def confirm(self) -> None:
        """The copy has the oldest update that was under way, or none can be kept."""
        if self._unstored and not self._is_closed:
            self._on_stored(self._unstored.popleft())

    def confirm_all(self) -> None:
        """There is no copy any more: the session continues without one."""
        self.is_stored = False
        while self._unstored and not self._is_closed:
            self.confirm()

    def fence(self) -> None:
        """Another server has the session: end it here, without a further event."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unstored.clear()
        self._on_stored(())  # wakes what waits for their delivery
        self._on_taken()

    def hand_over(self, epoch: int) -> SessionUpdate | None:
        """End the session here. Returns all of it, for the server that takes it over with this epoch."""
        if self._is_closed or epoch <= self.copy.epoch or self.copy.number < 0:
            return None
        self.fence()
        return self.copy.whole()
