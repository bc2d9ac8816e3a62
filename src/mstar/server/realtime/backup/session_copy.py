"""Copy of one realtime session: what another server needs to continue it. Pure data, without IO.

A session sends each change of its state with the events that the change made, as one update: a copy is never between
two states. The server that has the session keeps one too, for servers that have none of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from mstar.server.realtime.event_log import MAX_KEPT_BYTES

SessionKey = tuple[str, str]
"""Tenant and id of a session."""
Event = tuple[str, bytes]
"""Id and JSON of a server event."""
MAX_EVENT_BYTES = 2 * MAX_KEPT_BYTES
"""Bytes of events of a copy: as many as a session keeps, sent and waiting ones."""


class SessionUpdate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change of the state of one session, with the events that it made; or the whole session."""

    key: SessionKey
    epoch: int
    """Number of times that a server has taken the session over."""
    number: int
    """Number of earlier updates, over all servers that had the session."""
    resume_timeout_s: float
    is_whole: bool = False
    """Whether the receiver needs no earlier update."""
    parts: dict[str, bytes] = {}
    """Encoded parts of the state that have changed, by name; see `session_state`."""
    removed_parts: list[str] = []
    events: list[Event] = []
    audio_start: int = 0
    """Position of the first byte of the input audio buffer, counted from the start of the session."""
    audio: bytes = b""
    """Audio after that of the last update."""


class SessionCopy:
    """State of one session after its last update."""

    def __init__(self, key: SessionKey, resume_timeout_s: float) -> None:
        self.key = key
        self.resume_timeout_s = resume_timeout_s
        self.epoch = 0
        self.number = -1
        self.parts: dict[str, bytes] = {}
        self.events: deque[Event] = deque()
        self.audio_start = 0
        self.audio = bytearray()
        self.size_bytes = 0

    @classmethod
    def from_whole(cls, update: SessionUpdate) -> SessionCopy:
        """The copy after an update with a whole session."""
        copy = cls(update.key, update.resume_timeout_s)
        copy.epoch, copy.number, copy.audio_start = update.epoch, update.number - 1, update.audio_start
        copy.apply(update)
        return copy

    def has_event(self, event_id: str) -> bool:
        """Whether a client with this last event can continue with the copy. Any such copy is as good as another."""
        return not event_id or any(known == event_id for known, _ in self.events)

    @property
    def audio_end(self) -> int:
        """Position after the last byte of audio."""
        return self.audio_start + len(self.audio)

    def apply(self, update: SessionUpdate) -> None:
        """Apply the next update."""
        assert (update.epoch, update.number) == (self.epoch, self.number + 1), "updates are applied in order"
        self.number = update.number
        for name in update.removed_parts:
            self.size_bytes -= len(self.parts.pop(name, b""))
        for name, content in update.parts.items():
            self.size_bytes += len(content) - len(self.parts.get(name, b""))
            self.parts[name] = content
        self._apply_audio(update)
        self._add_events(update.events)

    def whole(self) -> SessionUpdate:
        """The whole session as an update that has the number of the last one."""
        return SessionUpdate(
            key=self.key,
            epoch=self.epoch,
            number=self.number,
            resume_timeout_s=self.resume_timeout_s,
            is_whole=True,
            parts=dict(self.parts),
            events=[*self.events],
            audio_start=self.audio_start,
            audio=bytes(self.audio),
        )

    def _apply_audio(self, update: SessionUpdate) -> None:
        before = len(self.audio)
        del self.audio[: update.audio_start - self.audio_start]  # all of it, if more was discarded
        self.audio += update.audio
        self.audio_start = update.audio_start
        self.size_bytes += len(self.audio) - before

    def _add_events(self, events: Iterable[Event]) -> None:
        self.events.extend(events)
        self.size_bytes += sum(len(message) for _, message in events)
        kept = sum(len(message) for _, message in self.events) if events else 0
        while kept > MAX_EVENT_BYTES:
            dropped = len(self.events.popleft()[1])
            kept -= dropped
            self.size_bytes -= dropped
