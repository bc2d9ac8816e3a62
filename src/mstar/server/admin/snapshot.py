"""Cluster snapshot: requests, workers, ops and streams of a deployment, merged from the replies of its processes.

`ClusterSnapshot.update` returns only what changed (a delta). `live_feed` sends the queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mstar.frontend.response_stream import LoopBridge
from mstar.server.admin.recent_requests import RecentRequests, RequestRecord
from mstar.server.status import Phase, WorkerProcessStatus
from mstar.wire.activity import OpActivity, RequestStatus, StreamFill, WorkerActivity
from mstar.wire.message import worker_of
from mstar.wire.messages import ActivityReply, Peer

Json = dict[str, Any]


class ClusterSource(Protocol):
    """The part of the server state that the live feed reads."""

    phase: Phase
    recent_requests: RecentRequests
    bridge: LoopBridge | None
    peers: Callable[[], Sequence[Peer]]
    process_statuses: Callable[[], Mapping[str, WorkerProcessStatus]]


@dataclass(slots=True)
class RequestView:
    """A request in progress: its status, its position at each worker, and the payload published last."""

    status: RequestStatus
    conductor: str
    """Name of its conductor."""
    positions: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Last walk index and call index, by worker."""
    payload: Json = field(default_factory=Json)
    tenant: str | None = None
    """None if unknown: it came through another front end, or its record was dropped."""
    record: RequestRecord | None = None
    """None if unknown, as for the tenant."""

    def refresh(self, tenant: str | None, record: RequestRecord | None) -> bool:
        """Rebuild the payload; return whether it has changed.

        The owner stays known: the response can be complete before the conductor has ended the request.
        """
        if record is None:
            tenant, record = self.tenant, self.record
        status = self.status
        at = [
            [worker, call_index]
            for worker, (walk_index, call_index) in self.positions.items()
            if walk_index == status.walk_index and worker in status.seats
        ]
        payload = {
            "rid": status.rid,
            "id": None if record is None else record.context.id,
            "model": status.model,
            "state": status.state,
            "walk": status.walk,
            "number": status.walk_index,
            "attempt": status.attempt,
            "seats": status.seats,
            "at": at,
            "emitted": {} if record is None else {kind: times.count for kind, times in record.deliveries.items()},
        }
        self.tenant, self.record = tenant, record
        has_changed = any(self.payload.get(key) != value for key, value in payload.items())
        if has_changed:
            self.payload = payload | {"age": status.age_s}
        return has_changed


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """What changed since the last update."""

    payload: Json
    changed: list[RequestView]
    ended: list[str]
    failed: list[str]
    """Those of the ended requests that failed."""

    def for_tenant(self, tenant: str, all_requests: Iterable[RequestView] | None = None) -> Json:
        """The update that one tenant gets. With `all_requests`, a full snapshot for a new or slow subscriber."""
        requests = self.changed if all_requests is None else all_requests
        redacted: Json = {"id": None, "emitted": {}}  # hidden in requests of other tenants
        payloads = [view.payload if view.tenant == tenant else view.payload | redacted for view in requests]
        return {
            **self.payload,
            "requests": payloads,
            "ended": self.ended,
            "failed": self.failed,
            "full": all_requests is not None,
        }


class ClusterSnapshot:
    """The last known state of the cluster."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestView] = {}
        """Requests in progress, by runtime request id."""
        self._by_conductor: dict[str, ActivityReply] = {}
        """Last reply of each conductor."""
        self._by_worker: dict[str, ActivityReply] = {}
        """Last reply of each worker."""

    def update(self, source: ClusterSource, replies: Mapping[str, ActivityReply]) -> SnapshotDelta:
        """Merge new replies; return what changed."""
        conductors = (
            set[str]() if source.bridge is None else {peer.name for peer in source.bridge.frontend.conductors.values()}
        )
        ended: dict[str, RequestView] = {}
        for name in conductors & replies.keys():
            ended |= self._update_conductor(name, replies[name])
        workers = {worker_of(name): reply for name, reply in replies.items() if name not in conductors}
        self._by_worker |= workers
        for name, reply in workers.items():
            for position in reply.positions:
                if (view := self.requests.get(position.rid)) is not None:
                    view.positions[name] = (position.walk_index, position.call_index)
        owners = {rid: owner for owner in source.recent_requests.in_progress() for rid in owner[1].rids}
        unknown = (None, None)
        changed = [view for rid, view in self.requests.items() if view.refresh(*owners.get(rid, unknown))]
        payload = {
            "t": time.time(),
            "phase": {"name": source.phase.name, "done": source.phase.done, "total": source.phase.total},
            "workers": self._worker_payloads(source.process_statuses()),
            "ops": [_op(name, op) for name, reply in workers.items() for op in reply.ops],
            "streams": [_stream(name, fill) for name, reply in workers.items() for fill in reply.streams],
            "transfers": [
                {"from": name, "to": transfer.to, "count": transfer.count, "seconds": transfer.seconds}
                for name, reply in workers.items()
                for transfer in reply.transfers
            ],
            "queue": sum(reply.queue_length for reply in self._by_conductor.values()),
        }
        failed = [rid for rid, view in ended.items() if view.record is not None and view.record.context.code]
        return SnapshotDelta(payload, changed, [*ended], failed)

    def _update_conductor(self, conductor: str, reply: ActivityReply) -> dict[str, RequestView]:
        """Merge the reply of a conductor; return its requests that have ended."""
        self._by_conductor[conductor] = reply
        running = {status.rid for status in reply.requests}
        missing = [rid for rid, view in self.requests.items() if view.conductor == conductor and rid not in running]
        ended = {rid: self.requests.pop(rid) for rid in missing}
        for status in reversed(reply.requests):  # oldest first
            if status.rid in self.requests:
                self.requests[status.rid].status = status
            else:
                self.requests[status.rid] = RequestView(status, conductor)
        return ended

    def _worker_payloads(self, statuses: Mapping[str, WorkerProcessStatus]) -> list[Json]:
        registered = {worker.name: worker for reply in self._by_conductor.values() for worker in reply.workers}
        return [
            _worker(name, status, registered.get(name), self._by_worker.get(name)) for name, status in statuses.items()
        ]


def _worker(
    name: str, status: WorkerProcessStatus, registered: WorkerActivity | None, activity: ActivityReply | None
) -> Json:
    """A worker: the status of its process, its state at its conductor, and its own counts."""
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
        "restarts": status.restarts,
        "failed_starts": status.failed_starts,
        "next_start": status.next_start_in_s,
        "utilization": registered.utilization if registered is not None and registered.utilization >= 0 else None,
        "slack": activity.slack_s if activity is not None and activity.slack_s >= 0 else None,
        "waiting": counts.get("waiting", 0),
        "running": counts.get("running", 0),
        "requests": counts.get("requests", 0),
        "pages": pages if pages[1] else None,
        "devices": dict(status.devices) if status.state == "up" else {},
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
