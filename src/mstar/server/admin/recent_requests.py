"""Recent requests: a ring buffer of the last requests of each tenant at this front end, with their delivery times.

What happened inside the runtime is not stored here: `traces` queries the other processes for it on demand.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mstar.server.admin.text_capture import CapturedText, TextCapture
from mstar.server.request_context import RequestContext
from mstar.wire.slo import PlaybackClock, has_deadline
from mstar.wire.span_buffer import measure_clock_offset

MAX_REQUESTS = 256
"""Maximum number of requests in the buffer of one tenant, unless more are in progress. Those are never dropped."""
MAX_EMISSION_TIMES = 32
"""Maximum number of delivery times per kind, besides the last one."""
MAX_RIDS = 64
"""Maximum number of runtime request ids per record; the oldest are dropped. A WebSocket can stay open for days."""


@dataclass(slots=True)
class DeliveryTimes:
    """When emissions of one kind were delivered."""

    first: list[float] = field(default_factory=list[float])
    """Delivery times of the first MAX_EMISSION_TIMES emissions."""
    last: float = 0.0
    count: int = 0
    seconds: float = 0.0
    """Playback duration of all of them."""
    due: list[float] = field(default_factory=list[float])
    """Deadlines of the first emissions, for a kind with deadlines."""
    playback: PlaybackClock | None = None


@functools.lru_cache(maxsize=1)
def _clock_offset(second: int) -> float:  # noqa: ARG001 - one measurement for all requests of a second
    return measure_clock_offset()


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One client request. Times are monotonic times of this process."""

    context: RequestContext
    traceparent: str
    """W3C Trace Context header of the client, empty without one."""
    started_at: float = field(default_factory=time.monotonic)
    wall_clock_offset: float = field(default_factory=lambda: _clock_offset(int(time.monotonic())))
    """Add it to a monotonic time to get Unix time."""
    ended_at: float | None = None
    model: str = ""
    tenant: str = ""
    """Tenant whose buffer it is in."""
    rids: deque[str] = field(default_factory=lambda: deque[str](maxlen=MAX_RIDS))
    """Runtime request ids that were started for it."""
    deliveries: dict[str, DeliveryTimes] = field(default_factory=dict[str, DeliveryTimes])
    """By emission kind."""
    shape: dict[str, Any] | None = None
    """Its shape and parameters; None unless its traffic is captured (`traffic`)."""
    captured: CapturedText | None = None
    """Its prompt and response; None unless the server captures text."""

    def record_delivery(self, kind: str, now: float, seconds: float | None = None) -> None:
        """Record that an emission was delivered. `seconds` is its playback duration, None if it has none."""
        times = self.deliveries.get(kind)
        if times is None:
            times = self.deliveries[kind] = DeliveryTimes()
            slo = self.context.slo
            if has_deadline(kind, slo):
                times.playback = PlaybackClock(self.started_at + slo.ttft_target_s)
        if times.count < MAX_EMISSION_TIMES:
            times.first.append(now)
            if times.playback is not None and times.playback.due < inf:
                times.due.append(times.playback.due)
        if times.playback is not None:
            times.playback.on_emission(now, seconds)
        times.last = now
        times.count += 1
        times.seconds += seconds or 0.0

    @property
    def seconds(self) -> float:
        """Duration of the request, until now if it has not ended."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def content(self) -> dict[str, Any]:
        """The record as GET /v1/requests returns it."""
        return {
            "id": self.context.id,
            "model": self.model,
            "endpoint": self.context.endpoint,
            "status": None if self.ended_at is None else self.context.status,
            "code": self.context.code,
            "error": self.context.error,
            "started_at": self.started_at + self.wall_clock_offset,
            "seconds": self.seconds,
            "emissions": [
                {
                    "kind": kind,
                    "count": times.count,
                    "first": [when - self.started_at for when in times.first],
                    "last": times.last - self.started_at,
                    "due": [when - self.started_at for when in times.due],
                }
                for kind, times in self.deliveries.items()
            ],
        }


_CURRENT_REQUEST: ContextVar[RequestRecord] = ContextVar("mstar_request")
"""Record of the request that the current task serves. `attach` is many calls below the middleware that sets it."""


class RecentRequests:
    """The last requests of one front end that reached the runtime, by tenant and request id."""

    def __init__(self) -> None:
        self.on_end: Callable[[RequestRecord], None] | None = None
        """Called when such a request has ended."""
        self.text_capture = TextCapture()
        self._records: defaultdict[str, dict[str, RequestRecord]] = defaultdict(dict)
        """By tenant and request id, oldest first. One buffer each: a tenant cannot evict the records of another."""
        self._ended: defaultdict[str, dict[str, RequestRecord]] = defaultdict(dict)
        """Those of them that have ended, in this order: with thousands in progress, a search would take too long."""

    def begin(self, context: RequestContext, traceparent: str) -> RequestRecord:
        """Create the record of a new request. It enters the buffer with `attach`."""
        record = RequestRecord(context, traceparent)
        _CURRENT_REQUEST.set(record)
        return record

    def attach(self, model: str, tenant: str, rids: Iterable[str]) -> RequestRecord | None:
        """Add runtime request ids to the record of the current task. None outside a client request."""
        record = _CURRENT_REQUEST.get(None)
        if record is not None:
            record.model, record.tenant = model, tenant
            record.rids.extend(rids)
            records = self._records[tenant]
            records.pop(record.context.id, None)  # a client can reuse an id: the newest record wins
            records[record.context.id] = record
            self._ended[tenant].pop(record.context.id, None)
            self._trim(tenant)
        return record

    def _trim(self, tenant: str) -> None:
        """Drop the requests that ended first. A request in progress stays: its client can list and cancel it."""
        records, ended = self._records[tenant], self._ended[tenant]
        while len(records) > MAX_REQUESTS and ended:
            request_id = next(iter(ended))
            del ended[request_id], records[request_id]

    def end(self, record: RequestRecord) -> None:
        """Record that a request has ended."""
        record.ended_at = time.monotonic()
        if self.find(record.tenant, record.context.id) is record:
            self._ended[record.tenant][record.context.id] = record
            self._trim(record.tenant)
        if record.rids and self.on_end is not None:
            self.on_end(record)

    def find(self, tenant: str, request_id: str) -> RequestRecord | None:
        """The request with this id, if it belongs to this tenant."""
        return self._records.get(tenant, {}).get(request_id)

    def in_progress(self) -> list[tuple[str, RequestRecord]]:
        """Tenant and record of each request that has not ended."""
        return [
            (tenant, record)
            for tenant, records in self._records.items()
            for record in records.values()
            if record.ended_at is None
        ]

    def all(self) -> list[RequestRecord]:
        """Requests of all tenants, newest first."""
        records = [record for records in self._records.values() for record in records.values()]
        return sorted(records, key=lambda record: record.started_at, reverse=True)

    def for_tenant(self, tenant: str) -> list[RequestRecord]:
        """Requests of one tenant, newest first."""
        return [*reversed(self._records.get(tenant, {}).values())]
