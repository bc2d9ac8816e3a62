"""The last requests that clients sent to this front end: whose they were, how they ended, when something was delivered.

What happened inside is asked of the other processes when somebody looks (see `traces`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from mstar.wire.clock import day_offset
from mstar.wire.pace import Playing, is_due

if TYPE_CHECKING:
    from mstar.server.visit import Passage

KEPT = 256
"""So many requests are remembered."""
FIRST = 32
"""Of so many emissions of each kind it is remembered when they were delivered, and of the last one."""
RIDS = 64
"""So many of what one client's connection had served, the newest: a call can go on for days."""


@dataclass(slots=True)
class Delivered:
    """When emissions of one kind were delivered."""

    first: list[float] = field(default_factory=list[float])
    last: float = 0.0
    count: int = 0
    due: list[float] = field(default_factory=list[float])
    """When the first ones should have been there, of a kind whose client plays what it gets."""
    player: Playing | None = None


@dataclass(eq=False, slots=True)
class Entry:
    """One request of a client. Times are of this process's clock."""

    passage: Passage
    traceparent: str
    """What the client says of the trace that this is part of, as W3C has it."""
    begun: float = field(default_factory=time.monotonic)
    clock: float = field(default_factory=day_offset)
    """The time of day when this process's clock was 0."""
    ended: float | None = None
    model: str = ""
    rids: deque[str] = field(default_factory=lambda: deque[str](maxlen=RIDS))
    """What the runtime calls what was opened for it."""
    delivered: dict[str, Delivered] = field(default_factory=dict[str, Delivered])

    def note(self, kind: str, now: float, seconds: float | None = None) -> None:
        """An emission was delivered, which plays for so many seconds, if it plays."""
        found = self.delivered.get(kind)
        if found is None:
            found = self.delivered[kind] = Delivered()
            pace = self.passage.pace
            if is_due(kind, pace):
                found.player = Playing(self.begun + pace.soon)
        if found.count < FIRST:
            found.first.append(now)
            if found.player is not None and found.player.due < inf:
                found.due.append(found.player.due)
        if found.player is not None:
            found.player.take(now, seconds)
        found.last = now
        found.count += 1

    @property
    def seconds(self) -> float:
        """How long it took, or takes until now."""
        return (time.monotonic() if self.ended is None else self.ended) - self.begun

    @property
    def content(self) -> dict[str, Any]:
        """What its client is told of it."""
        return {
            "id": self.passage.id,
            "model": self.model,
            "surface": self.passage.surface,
            "status": None if self.ended is None else self.passage.status,
            "begun": self.begun + self.clock,
            "seconds": self.seconds,
            "emissions": [
                {
                    "kind": kind,
                    "count": one.count,
                    "first": [when - self.begun for when in one.first],
                    "last": one.last - self.begun,
                    "due": [when - self.begun for when in one.due],
                }
                for kind, one in self.delivered.items()
            ],
        }


_CURRENT: ContextVar[Entry] = ContextVar("mstar_request")
"""The client's request for which something is done: it is opened many calls below where it came in."""


class Timelines:
    """The last requests of one front end that had something served, by whose they are and their id."""

    def __init__(self) -> None:
        self.on_end: Callable[[Entry], None] | None = None
        """Called when such a request has ended."""
        self._entries: dict[tuple[str, str], Entry] = {}

    def begin(self, passage: Passage, traceparent: str) -> Entry:
        """A request has come. It is remembered once something is opened for it."""
        entry = Entry(passage, traceparent)
        _CURRENT.set(entry)
        return entry

    def opened(self, model: str, tenant: str, rids: Iterable[str]) -> Entry | None:
        """Something is being served for the request that is at hand, if there is one."""
        entry = _CURRENT.get(None)
        if entry is not None:
            entry.model = model
            entry.rids.extend(rids)
            name = (tenant, entry.passage.id)
            self._entries.pop(name, None)  # a client may use an id again: the newest is meant
            self._entries[name] = entry
            if len(self._entries) > KEPT:
                del self._entries[next(iter(self._entries))]
        return entry

    def end(self, entry: Entry) -> None:
        """A request has ended."""
        entry.ended = time.monotonic()
        if entry.rids and self.on_end is not None:
            self.on_end(entry)

    def find(self, tenant: str, name: str) -> Entry | None:
        """The request with this id, if it is this tenant's."""
        return self._entries.get((tenant, name))

    def live(self) -> list[tuple[str, Entry]]:
        """The requests that have not ended, each with whose it is."""
        return [(whose, entry) for (whose, _), entry in self._entries.items() if entry.ended is None]

    def of(self, tenant: str) -> list[Entry]:
        """The requests of a tenant, the newest first."""
        return [entry for (whose, _), entry in reversed(self._entries.items()) if whose == tenant]
