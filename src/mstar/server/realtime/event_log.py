"""The latest server events of a resumable realtime session, and which of them were handed to a connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mstar.server.errors import ApiError

MAX_KEPT_BYTES = 1 << 20
"""Bytes of sent events that a resumable session keeps, and as many bytes of events that wait: 16 s of audio each."""


class EventLog:
    """The latest events, in order: first those that were handed over, then those that wait."""

    def __init__(self, events: Iterable[tuple[str, bytes]] = ()) -> None:
        """`events` were made by another server: those that the client has are skipped by `rewind`."""
        self._events: deque[tuple[str, bytes]] = deque(events)
        """Id and JSON."""
        self._next = 0
        """Index of the first event that waits."""
        self._sent_bytes, self._unsent_bytes = 0, sum(len(message) for _, message in self._events)
        self._last_dropped_id = ""

    def append(self, event_id: str, message: bytes) -> None:
        """Add an event that waits."""
        self._events.append((event_id, message))
        self._unsent_bytes += len(message)

    @property
    def is_full(self) -> bool:
        """Whether the events that wait are too many to add another one."""
        return self._unsent_bytes > MAX_KEPT_BYTES

    @property
    def unsent(self) -> bytes | None:
        """The first event that waits."""
        return self._events[self._next][1] if self._next < len(self._events) else None

    def advance(self) -> None:
        """The first event that waits was handed over. The oldest ones of those are dropped if they are too many."""
        size = len(self._events[self._next][1])
        self._next += 1
        self._sent_bytes += size
        self._unsent_bytes -= size
        while self._sent_bytes > MAX_KEPT_BYTES:
            self._last_dropped_id, dropped = self._events.popleft()
            self._next -= 1
            self._sent_bytes -= len(dropped)

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
        """The events from this one on wait again."""
        sizes = [len(message) for _, message in self._events]
        self._next, self._sent_bytes, self._unsent_bytes = index, sum(sizes[:index]), sum(sizes[index:])
