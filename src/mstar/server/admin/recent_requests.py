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

from mstar.wire.slo import PlaybackClock, has_deadline
from mstar.wire.span_buffer import measure_clock_offset

if TYPE_CHECKING:
    from mstar.server.http_exchange import RequestContext

MAX_REQUESTS = 256
"""So many requests are remembered."""
MAX_EMISSION_TIMES = 32
"""Of so many emissions of each kind it is remembered when they were delivered, and of the last one."""
MAX_RIDS = 64
"""So many of what one client's connection had served, the newest: a call can go on for days."""


@dataclass(slots=True)
class DeliveryTimes:
    """When emissions of one kind were delivered."""

    first: list[float] = field(default_factory=list[float])
    last: float = 0.0
    count: int = 0
    due: list[float] = field(default_factory=list[float])
    """When the first ones should have been there, of a kind whose client plays what it gets."""
    playback: PlaybackClock | None = None


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One request of a client. Times are of this process's clock."""

    context: RequestContext
    traceparent: str
    """What the client says of the trace that this is part of, as W3C has it."""
    started_at: float = field(default_factory=time.monotonic)
    wall_clock_offset: float = field(default_factory=measure_clock_offset)
    """The time of day when this process's clock was 0."""
    ended_at: float | None = None
    model: str = ""
    rids: deque[str] = field(default_factory=lambda: deque[str](maxlen=MAX_RIDS))
    """What the runtime calls what was opened for it."""
    deliveries: dict[str, DeliveryTimes] = field(default_factory=dict[str, DeliveryTimes])

    def record_delivery(self, kind: str, now: float, seconds: float | None = None) -> None:
        """An emission was delivered, which plays for so many seconds, if it plays."""
        found = self.deliveries.get(kind)
        if found is None:
            found = self.deliveries[kind] = DeliveryTimes()
            pace = self.context.slo
            if has_deadline(kind, pace):
                found.playback = PlaybackClock(self.started_at + pace.ttft_target_s)
        if found.count < MAX_EMISSION_TIMES:
            found.first.append(now)
            if found.playback is not None and found.playback.due < inf:
                found.due.append(found.playback.due)
        if found.playback is not None:
            found.playback.on_emission(now, seconds)
        found.last = now
        found.count += 1

    @property
    def seconds(self) -> float:
        """How long it took, or takes until now."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def content(self) -> dict[str, Any]:
        """What its client is told of it."""
        return {
            "id": self.context.id,
            "model": self.model,
            "endpoint": self.context.endpoint,
            "status": None if self.ended_at is None else self.context.status,
            "started_at": self.started_at + self.wall_clock_offset,
            "seconds": self.seconds,
            "emissions": [
                {
                    "kind": kind,
                    "count": one.count,
                    "first": [when - self.started_at for when in one.first],
                    "last": one.last - self.started_at,
                    "due": [when - self.started_at for when in one.due],
                }
                for kind, one in self.deliveries.items()
            ],
        }


_CURRENT_REQUEST: ContextVar[RequestRecord] = ContextVar("mstar_request")
"""The client's request for which something is done: it is opened many calls below where it came in."""


class RecentRequests:
    """The last requests of one front end that had something served, by whose they are and their id."""

    def __init__(self) -> None:
        self.on_end: Callable[[RequestRecord], None] | None = None
        """Called when such a request has ended."""
        self._records: dict[tuple[str, str], RequestRecord] = {}

    def begin(self, context: RequestContext, traceparent: str) -> RequestRecord:
        """A request has come. It is remembered once something is opened for it."""
        entry = RequestRecord(context, traceparent)
        _CURRENT_REQUEST.set(entry)
        return entry

    def attach(self, model: str, tenant: str, rids: Iterable[str]) -> RequestRecord | None:
        """Something is being served for the request that is at hand, if there is one."""
        entry = _CURRENT_REQUEST.get(None)
        if entry is not None:
            entry.model = model
            entry.rids.extend(rids)
            name = (tenant, entry.context.id)
            self._records.pop(name, None)  # a client may use an id again: the newest is meant
            self._records[name] = entry
            if len(self._records) > MAX_REQUESTS:
                del self._records[next(iter(self._records))]
        return entry

    def end(self, record: RequestRecord) -> None:
        """A request has ended."""
        record.ended_at = time.monotonic()
        if record.rids and self.on_end is not None:
            self.on_end(record)

    def find(self, tenant: str, name: str) -> RequestRecord | None:
        """The request with this id, if it is this tenant's."""
        return self._records.get((tenant, name))

    def in_progress(self) -> list[tuple[str, RequestRecord]]:
        """The requests that have not ended, each with whose it is."""
        return [(whose, entry) for (whose, _), entry in self._records.items() if entry.ended_at is None]

    def for_tenant(self, tenant: str) -> list[RequestRecord]:
        """The requests of a tenant, the newest first."""
        return [entry for (whose, _), entry in reversed(self._records.items()) if whose == tenant]
