"""What goes on in a deployment, put together from the news of its processes: moment by moment, for those who look on.

It tells only what changed. It asks nobody itself (see `events`), and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.wire.activity import OpActivity, RequestStatus, StreamFill, WorkerActivity
from mstar.wire.messages import ActivityReply

if TYPE_CHECKING:
    from mstar.server.admin.recent_requests import RequestRecord
    from mstar.server.state import ServerState, WorkerProcessStatus

Json = dict[str, Any]


@dataclass(slots=True)
class RequestView:
    """A request that is under way: how it is, where it was seen, and what was told of it last."""

    status: RequestStatus
    conductor: str
    """Who conducts it."""
    positions: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By worker: in which of its walks it was last seen there, and at which call."""
    payload: Json = field(default_factory=Json)
    tenant: str | None = None
    """Whose it is; None while that is not known: it was not opened here, or long ago."""
    record: RequestRecord | None = None
    """What its client sent, likewise."""

    def refresh(self, tenant: str | None, record: RequestRecord | None) -> bool:
        """Put together what is known of it; whether that is new."""
        news = self.status
        at = [
            [name, at]
            for name, (number, at) in self.positions.items()
            if number == news.walk_index and name in news.seats
        ]
        told = {
            "rid": news.rid,
            "id": None if record is None else record.context.id,
            "model": news.model,
            "state": news.state,
            "walk": news.walk,
            "number": news.walk_index,
            "attempt": news.attempt,
            "seats": news.seats,
            "at": at,
            "emitted": {} if record is None else {kind: one.count for kind, one in record.deliveries.items()},
        }
        self.tenant, self.record = tenant, record or self.record
        is_new = any(self.payload.get(key) != value for key, value in told.items())
        if is_new:
            self.payload = told | {"age": news.age_s}
        return is_new


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """What is new in one moment."""

    payload: Json
    changed: list[RequestView]
    ended: list[str]
    failed: list[str]
    """Those of them that were not answered well."""

    def for_tenant(self, tenant: str, all_requests: Iterable[RequestView] | None = None) -> Json:
        """As one key is told it; with `everybody`, all that is known, to who begins to look on."""
        requests = self.changed if all_requests is None else all_requests
        dot: Json = {"id": None, "emitted": {}}  # all that another key sees of it
        told = [one.payload if one.tenant == tenant else one.payload | dot for one in requests]
        over = {"ended": self.ended, "failed": self.failed, "full": all_requests is not None}
        return {**self.payload, "requests": told, **over}


class ClusterSnapshot:
    """All that is known, and what was told of it."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestView] = {}
        """Requests that are under way, by what the runtime calls them."""
        self._by_conductor: dict[str, ActivityReply] = {}
        """What each conductor told last."""
        self._by_worker: dict[str, ActivityReply] = {}
        """What each worker told last."""

    def update(self, state: ServerState, replies: Mapping[str, ActivityReply]) -> SnapshotDelta:
        """What is new, by what some processes have answered since the last moment."""
        conductors = (
            set[str]() if state.bridge is None else {one.name for one in state.bridge.frontend.conductors.values()}
        )
        over: dict[str, RequestView] = {}
        for name in conductors & replies.keys():
            over |= self._update_conductor(name, replies[name])
        workers = {name: news for name, news in replies.items() if name not in conductors}
        self._by_worker |= workers
        for name, news in workers.items():
            for place in news.positions:
                if (seen := self.requests.get(place.rid)) is not None:
                    seen.positions[name] = (place.walk_index, place.call_index)
        owners = {rid: found for found in state.recent_requests.in_progress() for rid in found[1].rids}
        nobody = (None, None)
        changed = [seen for rid, seen in self.requests.items() if seen.refresh(*owners.get(rid, nobody))]
        told = {
            "t": time.time(),
            "phase": {"name": state.phase.name, "done": state.phase.done, "total": state.phase.total},
            "workers": self._worker_payloads(state.process_statuses()),
            "ops": [_op(name, op) for name, news in workers.items() for op in news.ops],
            "streams": [_stream(name, one) for name, news in workers.items() for one in news.streams],
            "transfers": [
                {"from": name, "to": one.to, "count": one.count, "seconds": one.seconds}
                for name, news in workers.items()
                for one in news.transfers
            ],
            "queue": sum(news.queue_length for news in self._by_conductor.values()),
        }
        failed = [rid for rid, seen in over.items() if seen.record is not None and seen.record.context.code]
        return SnapshotDelta(told, changed, [*over], failed)

    def _update_conductor(self, conductor: str, activity: ActivityReply) -> dict[str, RequestView]:
        """A conductor has told who is under way; who is no longer."""
        self._by_conductor[conductor] = activity
        there = {one.rid for one in activity.requests}
        missing = [rid for rid, seen in self.requests.items() if seen.conductor == conductor and rid not in there]
        over = {rid: self.requests.pop(rid) for rid in missing}
        for one in reversed(activity.requests):  # the oldest first
            if one.rid in self.requests:
                self.requests[one.rid].status = one
            else:
                self.requests[one.rid] = RequestView(one, conductor)
        return over

    def _worker_payloads(self, statuses: Mapping[str, WorkerProcessStatus]) -> list[Json]:
        there = {one.name: one for news in self._by_conductor.values() for one in news.workers}
        return [_worker(name, one, there.get(name), self._by_worker.get(name)) for name, one in statuses.items()]


def _worker(
    name: str, status: WorkerProcessStatus, registered: WorkerActivity | None, activity: ActivityReply | None
) -> Json:
    """A worker: how its process is, as its conductor sees it, and what it holds."""
    if status.state != "up":
        registered = activity = None
    counts = {} if activity is None else activity.counts
    pages = [sum(count for key, count in counts.items() if key.endswith(end)) for end in (".pages_used", ".pages")]
    loading = {"part": status.component, "done": status.done, "total": status.total} if status.component else None
    return {
        "name": name,
        "incarnation": 0 if registered is None else registered.incarnation,
        "host": status.host,
        "state": status.state if registered is None else registered.state,
        "loading": loading,
        "utilization": registered.utilization if registered is not None and registered.utilization >= 0 else None,
        "slack": activity.slack_s if activity is not None and activity.slack_s >= 0 else None,
        "waiting": counts.get("waiting", 0),
        "running": counts.get("running", 0),
        "requests": counts.get("requests", 0),
        "pages": pages if pages[1] else None,
    }


def _op(worker: str, op: OpActivity) -> Json:
    return {
        "model": op.model,
        "walk": op.walk,
        "at": op.call_index,
        "worker": worker,
        "batches": op.batches,
        "calls": op.calls,
        "largest_batch": op.max_batch_size,
        "busy": op.busy_s,
        "waiting": op.ready_calls,
    }


def _stream(worker: str, fill: StreamFill) -> Json:
    return {
        "model": fill.model,
        "walk": fill.walk,
        "stream": fill.stream,
        "worker": worker,
        "items": fill.items,
        "bound": fill.capacity,
        "requests": fill.requests,
    }
