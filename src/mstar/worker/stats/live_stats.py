"""What a worker did in the last moments, noted for those who look on; while nobody does, nothing is noted.

Whoever asks is taken to look on for some time. Nothing is decided by it, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mstar.plan.tables import Call
from mstar.wire.activity import OpActivity, RequestPosition, StreamFill, TransferCount
from mstar.wire.messages import ActivityReply, Peer

if TYPE_CHECKING:
    from mstar.worker.core import WorkerCore
    from mstar.worker.requests import WorkerRequest
    from mstar.worker.scheduling.policy import ReadyCall

VIEWER_TTL_S = 2.0
"""For so many seconds after it has asked somebody is taken to look on."""
MAX_REPORTED_REQUESTS = 1024
"""Of so many requests it is told where they are, at most."""
NO_DEADLINE_S = 1e9
"""Who can wait for longer is not waiting for anything that is due."""

_CallSite = tuple[str, str, int]
"""A call of a walk: the model, the walk, and which of its calls."""


class _ViewerStats:
    """What happened since somebody last asked."""

    def __init__(self, until: float) -> None:
        self.expires_at = until
        self.ops: dict[_CallSite, OpActivity] = {}
        self.positions: dict[str, RequestPosition] = {}
        self.transfers: dict[str, TransferCount] = {}


class LiveStats:
    """What is noted at one worker, for each who looks on."""

    def __init__(self) -> None:
        self._by_viewer: dict[Peer, _ViewerStats] = {}

    def __bool__(self) -> bool:
        return bool(self._by_viewer)

    def on_batch(self, calls: Sequence[ReadyCall], seconds: float) -> None:
        """A batch has just been run."""
        size = len(calls)
        share = seconds / size
        for notes in self._by_viewer.values():
            seen: set[_CallSite] = set()
            for waiter in calls:
                start, at = waiter.walk_run.start, _call_index(waiter)
                place = (start.model, start.walk_name, at)
                op = notes.ops.get(place)
                if op is None:
                    op = notes.ops[place] = OpActivity(*place)
                op.calls += 1
                op.busy_s += share
                op.max_batch_size = max(op.max_batch_size, size)
                op.batches += place not in seen
                seen.add(place)
                if len(notes.positions) < MAX_REPORTED_REQUESTS or start.rid in notes.positions:
                    notes.positions[start.rid] = RequestPosition(start.rid, start.walk_index, at)

    def on_transfer(self, to: Peer, seconds: float) -> None:
        """Something has gone to another worker."""
        for notes in self._by_viewer.values():
            passing = notes.transfers.setdefault(to.name, TransferCount(to.name))
            passing.count += 1
            passing.seconds += seconds

    def expire(self, now: float) -> None:
        """Note nothing more for those who have not asked for long."""
        self._by_viewer = {peer: notes for peer, notes in self._by_viewer.items() if notes.expires_at > now}

    def build_activity(self, now: float, viewer: Peer, ticket: int, core: WorkerCore) -> ActivityReply:
        """What happened since this one last asked, and how things are."""
        notes = self._by_viewer.get(viewer)
        self._by_viewer[viewer] = _ViewerStats(now + VIEWER_TTL_S)
        if notes is None:  # it has just begun to look on
            notes = _ViewerStats(now)
        for waiter in core.scheduler:
            start = waiter.walk_run.start
            notes.ops.setdefault(
                place := (start.model, start.walk_name, _call_index(waiter)), OpActivity(*place)
            ).ready_calls += 1
        for waiter in (*core.scheduler, *core.running_calls()):  # where they are now is news, not where they were
            start = waiter.walk_run.start
            if len(notes.positions) < MAX_REPORTED_REQUESTS or start.rid in notes.positions:
                notes.positions[start.rid] = RequestPosition(start.rid, start.walk_index, _call_index(waiter))
        slack = core.scheduler.least_slack()
        return ActivityReply(
            ticket,
            core.stats(),
            slack if slack < NO_DEADLINE_S else -1.0,
            list(notes.ops.values()),
            list(notes.positions.values()),
            list(_stream_fills(core.requests.values())),
            list(notes.transfers.values()),
        )


def _call_index(ready_call: ReadyCall) -> int:
    call = ready_call.instruction.detail
    assert isinstance(call, Call), "nothing else waits"
    return call.index


def _stream_fills(requests: Iterable[WorkerRequest]) -> Iterator[StreamFill]:
    found: dict[tuple[str, str, str], StreamFill] = {}
    for tour in (guest.walk_run for guest in requests if guest.walk_run is not None):
        counts: dict[int, int] = {}
        for run in tour.runs.values():
            for end in run.readers.values():
                stream = end.source[1]
                counts[stream] = max(counts.get(stream, 0), len(end.items))
        for stream, items in counts.items():
            name, bound = tour.plan.streams[stream]
            key = (tour.start.model, tour.start.walk_name, name)
            one = found.setdefault(key, StreamFill(*key, 0, bound, 0))
            one.items = max(one.items, items)
            one.requests += 1
    yield from found.values()
