"""Lookaheads at one worker: walk runs that run in idle time until the conductor commits or drops them.

    StartWalk (walk_index < 0) ──▶ runs in idle time ──▶ finished: its states wait
                                       │                      │
              CommitLookahead          ├──────────────────────┤ ordinary walk run; the route holds its states
              DropLookahead            ├──────────────────────┤ everything is freed
              failed, or evicted       └──▶ lost: everything is freed, and the conductor is told

A lookahead that has finished here is not lost when its states are evicted: they are restored like others.
"""

from __future__ import annotations

from mstar.failpoints import hit
from mstar.wire import messages as m
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.scheduler import Scheduler
from mstar.worker.state_table import StateTable
from mstar.worker.stats.op_stats import OpStatsRecorder


class Lookaheads:
    """Ends the lookaheads of all requests at this worker."""

    def __init__(
        self,
        requests: RequestTable,
        states: StateTable,
        scheduler: Scheduler,
        op_stats: OpStatsRecorder,
        outbox: Outbox,
    ) -> None:
        self._requests = requests
        self._states = states
        self._scheduler = scheduler
        self._op_stats = op_stats
        self._outbox = outbox

    def execute(self, now: float, command: m.CommitLookahead | m.DropLookahead) -> None:
        """Commit or drop a lookahead. One that was lost, or that is of an earlier attempt, is ignored."""
        hit("worker.end_lookahead")
        request = self._requests.get(command.rid)
        walk_run = None if request is None else request.lookaheads.get(command.walk_index)
        if walk_run is None or walk_run.start.attempt != command.attempt or walk_run.is_over:
            return
        if isinstance(command, m.DropLookahead):
            self.drop(walk_run, "dropped")
            return
        self._record(walk_run, "committed")
        walk_run.lookahead = None
        self._states.keep(walk_run)
        self._scheduler.lookaheads.promote(now, walk_run)
        self.forget_finished(walk_run)

    def forget_finished(self, walk_run: WalkRun) -> None:
        """Forget a committed lookahead that has finished: its request keeps its states."""
        if walk_run.is_started and not walk_run.runs:
            _forget(walk_run)

    def abort(self, walk_run: WalkRun, report: m.AttemptFailed | m.RetryNeeded) -> None:
        """Drop a lookahead that cannot continue. The attempt does not fail, unless the lookahead is committed."""
        self._outbox.send_to_conductor(report if walk_run.lookahead is None else _lost(walk_run))
        self.drop(walk_run, "lost")

    def drop_evicted(self) -> None:
        """Drop the unfinished lookaheads whose states the engine evicted: others need the memory."""
        for request in self._requests:
            for walk_run in [*request.lookaheads.values()]:
                if walk_run.lookahead is not None and walk_run.is_preempted and walk_run.runs:
                    self._outbox.send_to_conductor(_lost(walk_run))
                    self.drop(walk_run, "lost")

    def drop_all(self, request: WorkerRequest, outcome: str) -> None:
        """Drop all lookaheads of a request."""
        for walk_run in [*request.lookaheads.values()]:
            self.drop(walk_run, outcome)

    def drop(self, walk_run: WalkRun, outcome: str) -> None:
        """Drop a lookahead and its states. Results of calls in flight are discarded when they arrive."""
        hit("worker.drop_lookahead")
        request = walk_run.request
        if not walk_run.is_over:
            self._scheduler.drop(walk_run)
            walk_run.drop()
            if walk_run.lookahead is not None:
                for number in walk_run.lookahead.kept_states:
                    request.route_states.pop(number, None)
            self._record(walk_run, outcome)
            self._requests.resume_preempted()
        if not walk_run.in_flight:
            _forget(walk_run)

    def on_late_result(self, walk_run: WalkRun) -> None:
        """A call of a dropped lookahead has returned."""
        if walk_run.lookahead is not None:
            self._record(walk_run, walk_run.lookahead.outcome)
        if not walk_run.in_flight:
            _forget(walk_run)

    def _record(self, walk_run: WalkRun, outcome: str) -> None:
        if walk_run.lookahead is not None:
            walk_run.lookahead.outcome = outcome
            self._op_stats.on_lookahead_ended(walk_run.start.model, walk_run.lookahead)


def _lost(walk_run: WalkRun) -> m.LookaheadLost:
    start = walk_run.start
    return m.LookaheadLost(start.rid, start.attempt, start.walk_index)


def _forget(walk_run: WalkRun) -> None:
    lookaheads, index = walk_run.request.lookaheads, walk_run.start.walk_index
    if lookaheads.get(index) is walk_run:
        del lookaheads[index]
