"""Reports of workers about the walks that they run: results of seats, failures, and requests to retry.

Reports about attempts or walks that are over are counted and ignored.
"""

from __future__ import annotations

from mstar.conductor.dispatch.walk_dispatch import WalkDispatcher
from mstar.conductor.recovery.request_retries import RequestRetries
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.requests import FinishStatus, Request
from mstar.failpoints import hit
from mstar.wire import messages as m

WalkReport = m.SeatDone | m.AttemptFailed | m.RetryNeeded | m.LookaheadLost


class WalkReports:
    """Receives the reports of all workers of one conductor."""

    def __init__(self, lifecycle: RequestLifecycle, retries: RequestRetries, dispatcher: WalkDispatcher) -> None:
        self.stale_messages = 0
        """Number of messages about attempts or walks that are over."""
        self._lifecycle = lifecycle
        self._retries = retries
        self._dispatcher = dispatcher
        self._lookaheads = lifecycle.lookaheads

    def on_report(self, now: float, sender: m.Peer, message: WalkReport) -> None:
        """Handle the result of a seat, a failure, or a request to retry; ignore those of earlier attempts."""
        request = self._lifecycle.requests.get(message.rid)
        if request is None or request.attempt != message.attempt or sender not in request.workers:
            self.stale_messages += 1
        elif isinstance(message, m.SeatDone):
            self._on_seat_done(now, request, sender, message)
        elif isinstance(message, m.AttemptFailed):
            self._lifecycle.finish(now, request, FinishStatus.from_report(sender, message))
        elif isinstance(message, m.LookaheadLost):
            self.stale_messages += not self._lookaheads.on_lost(now, request, message.walk_index)
        else:
            self._retries.retry(now, request, message.reason)

    def _on_seat_done(self, now: float, request: Request, peer: m.Peer, done: m.SeatDone) -> None:
        hit("conductor.on_seat_done")
        run = request.walk_run
        if run is None or run.walk_index != done.walk_index or done.seat not in run.pending_seats:
            self.stale_messages += not self._lookaheads.on_seat_done(request, peer, done)
            return
        unreadable = run.add_seat_result(peer, done)
        if unreadable is not None:
            self._retries.retry(now, request, unreadable.text)
            return
        for kind, due in done.due_in_s.items():
            request.next_due[kind] = now + due
        if not run.pending_seats:
            hit("conductor.finish_walk")
            result = self._dispatcher.complete(request, run)
            del run  # its inputs can be states that the route is about to drop
            self._lifecycle.advance(now, request, result)
