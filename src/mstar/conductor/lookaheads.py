"""Lookaheads: walks that routes have offered to run early, until they are committed or dropped.

| event | effect |
|---|---|
| the route offers a walk, and awaits something else | it starts on the workers that hold its states, as a lookahead |
| commit, finished | the route gets its result at once |
| commit, not finished | it becomes the walk that the route awaits |
| commit, never started or lost | the walk is run then |
| drop, or the end of the route | its workers free everything |
| a worker of it is lost, it fails, or its memory is needed | it is lost: nothing happens until the commit |
| the attempt ends | all lookaheads of the attempt are lost |

Only the results of commits are recorded, as those of all walks that a route awaits, so a retry does not depend on what
ran early. A request that has crashed a worker starts no lookaheads: one that is dropped must not be able to end it.
"""

from __future__ import annotations

from typing import Any

from mstar.conductor.dispatch.walk_dispatch import WalkDispatcher
from mstar.conductor.request_states import StateLocation
from mstar.conductor.requests import Request, WalkRun
from mstar.conductor.spans import RequestSpans
from mstar.failpoints import hit
from mstar.walk.model import Lookahead, WalkCall
from mstar.wire import messages as m


class Lookaheads:
    """Starts and ends the lookaheads of all requests of one conductor."""

    def __init__(self, dispatcher: WalkDispatcher, spans: RequestSpans) -> None:
        self._dispatcher = dispatcher
        self._spans = spans

    # ---------------------------------------------------------------- route
    def update(self, now: float, request: Request, offered: list[Lookahead[Any]]) -> None:
        """Drop what the route has dropped, and start what it has offered since the last await.

        `offered` are its open lookaheads. Called after the walk that it awaits has started: that one goes first.
        """
        hit("conductor.update_lookaheads")
        is_open = {handle.index for handle in offered}
        for index in [index for index in request.lookaheads if index not in is_open]:
            self._dispatcher.drop_lookahead(request, request.lookaheads.pop(index))
        self._dispatcher.free_dropped_states(request)
        for handle in offered:
            if handle.index < request.last_lookahead:
                request.last_lookahead = handle.index
                if handle.call is not None and not request.crash_history.has_deaths:
                    self._start(now, request, handle.call)

    def _start(self, now: float, request: Request, call: WalkCall[Any, Any]) -> None:
        index = call.lookahead_index
        run = WalkRun(call, request.model.plans.walks[call.name], 0, waiting_since=now, lookahead_index=index)
        is_own = all(handle.states is request.states for handle in run.handles.values())  # else its commit fails
        if is_own and self._dispatcher.start_lookahead(now, request, run):
            request.lookaheads[index] = run

    def commit(self, now: float, request: Request, index: int) -> WalkRun | None:
        """Make a lookahead the walk of its request; return None if it must be run now."""
        hit("conductor.commit_lookahead")
        run = request.lookaheads.pop(index, None)
        if run is None:
            return None
        if not self._dispatcher.are_responsive(run):
            self._dispatcher.drop_lookahead(request, run)
            return None
        run.number, run.waiting_since = request.walk_count, now
        request.max_walk_started = max(request.max_walk_started, run.number)
        self._dispatcher.commit_lookahead(request, run)
        return run

    # ---------------------------------------------------------------- reports
    def on_seat_done(self, request: Request, peer: m.Peer, done: m.SeatDone) -> bool:
        """Record the result of a seat; return whether there is such a lookahead."""
        run = request.lookaheads.get(done.walk_index)
        if run is None or done.seat not in run.pending_seats:
            return False
        if run.add_seat_result(peer, done) is not None:  # a result cannot be read
            self._dispatcher.drop_lookahead(request, request.lookaheads.pop(done.walk_index))
        return True

    def on_lost(self, now: float, request: Request, index: int) -> bool:
        """A worker has lost a lookahead. If it is committed, run it again; return whether there is such a lookahead."""
        hit("conductor.lookahead_lost")
        if index in request.lookaheads:
            self._dispatcher.drop_lookahead(request, request.lookaheads.pop(index))
            return True
        run = request.walk_run
        if run is None or run.walk_index != index:
            return False
        self._spans.on_walk_finished(request.rid)
        self._dispatcher.drop_lookahead(request, run)
        self._dispatcher.release_workers(run)
        outputs = [value for value in run.outputs.values() if isinstance(value, StateLocation)]
        request.states.dropped += {*run.state_locations.values(), *outputs}
        request.walk_run = WalkRun(run.call, run.plan, run.number, waiting_since=now)
        self._dispatcher.place(now, request)
        return True

    def on_worker_lost(self, request: Request, peer: m.Peer) -> None:
        """Lose the lookaheads that have a seat on a worker."""
        for index, run in [*request.lookaheads.items()]:
            if peer in run.seats:
                self._dispatcher.drop_lookahead(request, request.lookaheads.pop(index))
