"""Table of the requests at one worker, of messages that arrive before their walk, and of preemption.

It decides which walk run a message belongs to: messages of an earlier walk or attempt are stale and ignored, messages
of a later one are buffered until the conductor starts that walk here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mstar.plan.tables import Plans
from mstar.wire import messages as m
from mstar.worker.early_messages import EarlyMessages, WalkKey
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.state_table import StateTable
from mstar.worker.stats.op_stats import OpStatsRecorder


class RequestTable:
    """Requests by id. It opens and closes their trace spans."""

    def __init__(
        self,
        peer: m.Peer,
        plans: Mapping[str, Plans],
        states: StateTable,
        early_messages: EarlyMessages,
        op_stats: OpStatsRecorder,
    ) -> None:
        self.peer = peer
        self._plans = plans
        self._states = states
        self._early_messages = early_messages
        self._op_stats = op_stats
        self._requests: dict[str, WorkerRequest] = {}
        self._last_walk_number = 0
        self._distributed_count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[WorkerRequest]:
        return iter(self._requests.values())

    @property
    def distributed_count(self) -> int:
        """Number of requests whose last walk has partitions at other workers too.

        Counted when walks start and requests end: many choices of a batch need it, and there can be thousands of
        requests.
        """
        return self._distributed_count

    def get(self, rid: str) -> WorkerRequest | None:
        """Request with this id, in any attempt."""
        return self._requests.get(rid)

    def walk_runs(self) -> Iterable[WalkRun]:
        """Current walk run of each request, including runs that are over."""
        return (request.walk_run for request in self._requests.values() if request.walk_run is not None)

    # ---------------------------------------------------------------- lifetime of requests
    def open(self, rid: str, attempt: int) -> WorkerRequest:
        """Get or create a request."""
        request = self._requests.get(rid)
        if request is None:
            request = self._requests[rid] = WorkerRequest(rid, attempt, self._op_stats.spans(rid))
        return request

    def open_walk(self, request: WorkerRequest, start: m.StartWalk) -> WalkRun:
        """Create the walk run of a request that has none running."""
        self._last_walk_number += 1
        plan = self._plans[start.model].walks[start.walk_name]
        request.attempt = start.attempt
        self._count(request.walk_run, -1)
        request.walk_run = WalkRun(self._states, request, start, plan, self._last_walk_number)
        self._count(request.walk_run, 1)
        return request.walk_run

    def open_lookahead(self, request: WorkerRequest, start: m.StartWalk) -> WalkRun:
        """Create the walk run of a lookahead. The walk of the request keeps running."""
        self._last_walk_number += 1
        plan = self._plans[start.model].walks[start.walk_name]
        walk_run = WalkRun(self._states, request, start, plan, self._last_walk_number)
        request.lookaheads[start.walk_index] = walk_run
        request.last_lookahead = (start.attempt, -start.walk_index)
        return walk_run

    def close(self, request: WorkerRequest) -> None:
        """Remove a request with the states of its route. Its walk run must be over."""
        request.is_dropped = True
        request.route_states.clear()
        self._count(request.walk_run, -1)
        request.lookaheads.clear()
        request.walk_run = None  # breaks a reference cycle, so that the inputs of the walk are freed at once
        self._early_messages.drop(request.rid, request.attempt)
        del self._requests[request.rid]
        self._op_stats.finish(request.rid)

    # ---------------------------------------------------------------- messages of other workers
    def find_walk(self, now: float, message: m.DataBatch | m.StateInput) -> WalkRun | None:
        """Walk run that a message belongs to, or None if the message is stale or was buffered for a later walk."""
        request = self._requests.get(message.rid)
        if message.walk_index < 0:
            return self._find_lookahead(now, request, message)
        walk_run = None if request is None else request.walk_run
        target = (message.attempt, message.walk_index)
        current = (-1, -1)
        if request is not None:
            current = (request.attempt, -1 if walk_run is None else walk_run.start.walk_index)
        if target == current:
            return walk_run
        if target > current:
            self._early_messages.add(now, message)
        return None

    def _find_lookahead(
        self, now: float, request: WorkerRequest | None, message: m.DataBatch | m.StateInput
    ) -> WalkRun | None:
        if request is None or request.last_lookahead < (message.attempt, -message.walk_index):
            if request is None or request.attempt <= message.attempt:
                self._early_messages.add(now, message)
            return None
        walk_run = request.lookaheads.get(message.walk_index)
        return walk_run if walk_run is not None and walk_run.start.attempt == message.attempt else None

    def take_early(self, start: m.StartWalk) -> list[m.DataBatch | m.StateInput]:
        """Remove and return the messages that arrived before this walk, in order."""
        return self._early_messages.take((start.rid, start.attempt, start.walk_index))

    def drop_early(self, rid: str, attempt: int) -> None:
        """Drop buffered messages of all attempts of a request up to this one, and ignore later ones."""
        self._early_messages.drop(rid, attempt)

    def expire_early(self, now: float) -> Iterable[WalkKey]:
        """Drop messages whose walk was not started in time; yields the walks."""
        return self._early_messages.expire(now)

    # ---------------------------------------------------------------- scheduling
    def resume_preempted(self) -> None:
        """Resume the oldest preempted walk run, because another one has freed its memory."""
        if preempted := self._states.preempted_owners():
            min(preempted, key=lambda walk_run: walk_run.number).is_preempted = False

    def _count(self, walk_run: WalkRun | None, number: int) -> None:
        if walk_run is not None and any(seat != self.peer for seat in walk_run.start.seats):
            self._distributed_count += number
