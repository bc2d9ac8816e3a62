"""Retries of requests that lost a worker or an output.

Retry is replay: computation is deterministic, and the front end counts emissions, so the client sees no repetition.

1. If all states of the request are alive, only the walk in execution starts again.
2. Otherwise the route starts again. Results of pure walks (no state in or out) are replayed from the record, all other
   walks run again.
3. A request that would repeat a non-idempotent walk is not retried: it ends as `not_retryable`.
4. A request whose worker is unresponsive is retried only if other workers can serve it and rule 3 does not end it.
5. Lookaheads that lost a worker are not repeated until their route commits them.
6. A request that crashes workers is poison: it ends as `poison`. `crash_history` has the rule.
"""

from __future__ import annotations

from mstar.conductor.attempts import Attempts
from mstar.conductor.dispatch.walk_dispatch import WalkDispatcher
from mstar.conductor.membership import WorkerLost
from mstar.conductor.recovery.crash_history import WorkerDeath
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.requests import FinishStatus, Request, WalkRun
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.conductor.spans import RequestSpans
from mstar.conductor.worker import Worker
from mstar.failpoints import hit
from mstar.wire import messages as m


class RequestRetries:
    """Decides which requests of one conductor start again, and where."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        dispatcher: WalkDispatcher,
        attempts: Attempts,
        versions: WeightsVersions,
        spans: RequestSpans,
    ) -> None:
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._versions = versions
        self._spans = spans

    def resubmit(self, now: float, submit: m.Submit) -> None:
        """Handle a submission of a known request: retry it if the client misses output of this attempt."""
        request = self._lifecycle.requests[submit.rid]
        if submit.last_seen_attempt >= request.attempt:
            self.retry(now, request, "an emission was lost", from_scratch=True)

    def retry(self, now: float, request: Request, reason: str, *, from_scratch: bool = False) -> None:
        """Retry a request that lost a worker or an emission; see the steps in the module docstring.

        `from_scratch` discards all recorded results: an emission of a finished walk was lost.
        """
        hit("conductor.retry")
        is_whole = not from_scratch and self._dispatcher.are_states_alive(request)
        run = request.walk_run
        if run is None and (is_whole or not request.is_awaiting_input):
            return
        if not self._attempts.count_retry(request):
            text = f"failed after {request.retries - 1} retries (max_retries); last reason: {reason}"
            text += "\n  fix: see the log of the server, then send the request again"
            self._lifecycle.finish(now, request, FinishStatus("unavailable", "Unavailable", text))
            return
        results = [] if is_whole else request.walk_results
        repeated = [result.name for result in results if from_scratch or not result.is_pure]
        if run is not None and not run.is_waiting:
            repeated.append(run.call.name)
        if names := [name for name in repeated if name in request.model.non_idempotent_walks]:
            self._lifecycle.finish(now, request, FinishStatus.not_retryable("a worker was lost", names[0]))
            return
        if from_scratch:
            request.walk_results.clear()
        if run is not None:
            self._dispatcher.release_workers(run)
        self._attempts.release(request, keeps_states=is_whole)
        request.predicted_ttft_s = 0.0
        request.next_due.clear()  # whatever the client had buffered, it waits now
        request.attempt = self._attempts.next()
        self._spans.on_attempt(request, reason)
        if run is not None and is_whole:
            request.walk_run = WalkRun(run.call, run.plan, run.number, waiting_since=now)
            self._dispatcher.place(now, request)
        else:
            request.walk_run = None
            if request.route is not None:
                request.route.close()
            self._lifecycle.start_route(now, request)

    def restart_with_new_weights(self, now: float, request: Request) -> None:
        """Restart a request whose weights version is no longer served, if its client has no output of it yet."""
        if request.has_emitted or not request.is_retryable:
            text = f"version {request.weights_version} of the weights, with which it started, is no longer served"
            self._lifecycle.finish(now, request, FinishStatus("not_retryable", "NotRetryable", text))
        else:
            self._versions.set_version(request, None)
            self.retry(
                now, request, f"version {self._versions.newest} of the weights was rolled out", from_scratch=True
            )

    def on_worker_lost(self, now: float, lost: WorkerLost) -> None:
        """Retry every request that needs a lost worker."""
        self.isolate_suspects(now, lost)
        current = self._lifecycle.requests
        requests = [request for rid, request in lost.requests.items() if current.get(rid) is request]
        for request in requests:
            if request.lookaheads:
                self._lifecycle.lookaheads.on_worker_lost(request, lost.peer)
        affected = [request for request in requests if request.needs(lost.peer)]
        for request in sorted(affected, key=lambda each: each.number):
            self.retry(now, request, lost.reason or f"worker {lost.peer} was lost")
        for request in requests:
            request.workers.discard(lost.peer)

    def on_worker_unresponsive(self, now: float, worker: Worker) -> None:
        """Move the walks that wait for an unresponsive worker to other workers. Where there are none, they wait.

        This is called on every tick. Whether a walk can move depends on the fleet and does not change while the walk
        runs: all requests of the worker are checked when the fleet has changed, otherwise those placed since.
        """
        fleet = (worker.last_alive_at, *self._versions.fleet_state())
        checked = worker.requests if fleet != worker.checked_fleet else worker.unchecked
        worker.checked_fleet, worker.unchecked = fleet, {}
        movable = [each for each in checked.values() if self._dispatcher.can_move(each, worker.peer)]
        for request in sorted(movable, key=lambda each: each.number):
            self.retry(now, request, f"worker {worker.peer} does not respond")

    def isolate_suspects(self, now: float, lost: WorkerLost) -> None:
        """Run the requests that a dead worker was computing in isolation; end one that is certain to be the cause."""
        for suspect in lost.suspects:
            request = self._lifecycle.requests.get(suspect.rid)
            if request is None:
                continue
            death = WorkerDeath(suspect.calls_completed, was_alone=len(lost.suspects) == 1, cause=lost.cause)
            if request.crash_history.record(lost.peer, death):
                deaths = request.crash_history.count_at(suspect.calls_completed)
                text = f"{deaths} workers died at the same call of this request, the last while it ran alone"
                self._lifecycle.finish(now, request, FinishStatus("poison", "Poison", text))
