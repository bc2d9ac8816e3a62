"""Live view of a worker: recent activity per viewer, recorded only while a viewer polls.

A viewer subscribes by polling and expires `VIEWER_TTL_S` after its last poll. Nothing here affects scheduling, and
nothing is sent except in reply to a poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mstar.plan.tables import Call
from mstar.wire.activity import OpActivity, RequestPosition, StreamFill, TransferCount
from mstar.wire.messages import ActivityReply, Peer
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.ready_call import ReadyCall

VIEWER_TTL_S = 2.0
"""Seconds after its last poll for which activity is recorded for a viewer."""
MAX_REPORTED_REQUESTS = 1024
"""Maximum requests whose position is reported."""
NO_DEADLINE_S = 1e9
"""Slack from which a call counts as having no deadline, in seconds."""

_CallSite = tuple[str, str, int]
"""Model, walk, and index of the call in the walk."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """What a worker is doing at one moment."""

    counts: Mapping[str, int]
    waiting_calls: Sequence[ReadyCall]
    running_calls: Sequence[ReadyCall]
    least_slack_s: float
    requests: Iterable[WorkerRequest]


class _ViewerStats:
    """Activity since the viewer's last poll."""

    def __init__(self, expires_at: float) -> None:
        self.expires_at = expires_at
        self.ops: dict[_CallSite, OpActivity] = {}
        self.positions: dict[str, RequestPosition] = {}
        self.transfers: dict[str, TransferCount] = {}

    def op(self, call: ReadyCall) -> OpActivity:
        """Activity record of a call site."""
        start = call.walk_run.start
        site = (start.model, start.walk_name, _call_index(call))
        op = self.ops.get(site)
        if op is None:
            op = self.ops[site] = OpActivity(*site)
        return op

    def set_position(self, call: ReadyCall) -> None:
        """Report a request as being at this call, up to the maximum number of requests."""
        start = call.walk_run.start
        if start.walk_index < 0:
            return  # a lookahead: the request is at the walk that its route awaits
        if len(self.positions) < MAX_REPORTED_REQUESTS or start.rid in self.positions:
            self.positions[start.rid] = RequestPosition(start.rid, start.walk_index, _call_index(call))


class LiveStats:
    """Activity of one worker for each viewer. False without viewers."""

    def __init__(self) -> None:
        self._by_viewer: dict[Peer, _ViewerStats] = {}

    def __bool__(self) -> bool:
        return bool(self._by_viewer)

    def on_batch(self, calls: Sequence[ReadyCall], seconds: float) -> None:
        """Record a finished batch."""
        size = len(calls)
        for stats in self._by_viewer.values():
            counted: set[int] = set()
            for call in calls:
                op = stats.op(call)
                op.calls += 1
                op.busy_s += seconds / size
                op.max_batch_size = max(op.max_batch_size, size)
                if id(op) not in counted:
                    counted.add(id(op))
                    op.batches += 1
                stats.set_position(call)

    def on_transfer(self, to: Peer, seconds: float) -> None:
        """Record a transfer to another worker."""
        for stats in self._by_viewer.values():
            transfer = stats.transfers.setdefault(to.name, TransferCount(to.name))
            transfer.count += 1
            transfer.seconds += seconds

    def expire(self, now: float) -> None:
        """Remove viewers that have stopped polling."""
        self._by_viewer = {peer: stats for peer, stats in self._by_viewer.items() if stats.expires_at > now}

    def build_activity(self, now: float, viewer: Peer, correlation_id: int, snapshot: WorkerSnapshot) -> ActivityReply:
        """Activity since this viewer's last poll, with the current state of the worker."""
        stats = self._by_viewer.get(viewer)
        self._by_viewer[viewer] = _ViewerStats(now + VIEWER_TTL_S)
        if stats is None:
            stats = _ViewerStats(now)
        for call in snapshot.waiting_calls:
            stats.op(call).ready_calls += 1
        for call in (*snapshot.waiting_calls, *snapshot.running_calls):  # the current position replaces a recorded one
            stats.set_position(call)
        return ActivityReply(
            correlation_id,
            dict(snapshot.counts),
            snapshot.least_slack_s if snapshot.least_slack_s < NO_DEADLINE_S else -1.0,
            list(stats.ops.values()),
            list(stats.positions.values()),
            list(_stream_fills(snapshot.requests)),
            list(stats.transfers.values()),
        )


def _call_index(ready_call: ReadyCall) -> int:
    call = ready_call.instruction.detail
    assert isinstance(call, Call), "only calls wait for the engine"
    return call.index


def _stream_fills(requests: Iterable[WorkerRequest]) -> Iterator[StreamFill]:
    """Fill level of each stream: the fullest reader of any request."""
    fills: dict[tuple[str, str, str], StreamFill] = {}
    for request in requests:
        walk_run = request.walk_run
        if walk_run is None:
            continue
        for stream, items in _buffered_items(walk_run).items():
            name, bound = walk_run.plan.streams[stream]
            key = (walk_run.start.model, walk_run.start.walk_name, name)
            fill = fills.setdefault(key, StreamFill(*key, 0, bound, 0))
            fill.items = max(fill.items, items)
            fill.requests += 1
    yield from fills.values()


def _buffered_items(walk_run: WalkRun) -> dict[int, int]:
    """Items in the fullest reader of each stream of a walk run."""
    counts: dict[int, int] = {}
    for run in walk_run.runs.values():
        for reader in run.readers.values():
            stream = reader.source[1]
            counts[stream] = max(counts.get(stream, 0), len(reader.items))
    return counts
