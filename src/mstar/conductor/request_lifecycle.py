"""Request lifecycle: drives each request's route from submission to its end.

    queued ──start──▶ running route ──▶ walk waits for workers ──▶ walk runs ──▶ … ──▶ finished
                        │      ▲                                     │
                        ▼      │ client input        worker lost ────┘ retry with a new attempt number
                     awaiting input

What workers report is handled in `walk_reports`, retries in `recovery.request_retries`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from mstar.conductor.admission import Admission
from mstar.conductor.attempts import Attempts
from mstar.conductor.dispatch.walk_dispatch import WalkDispatcher
from mstar.conductor.fair_queue import count_down
from mstar.conductor.lookaheads import Lookaheads
from mstar.conductor.model import ConductorModel
from mstar.conductor.outbox import Outbox
from mstar.conductor.request_states import StateHandle
from mstar.conductor.requests import FinishStatus, Request, WalkRun, is_resubmitted
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.conductor.spans import RequestSpans
from mstar.errors import RouteError
from mstar.failpoints import hit
from mstar.walk.client_input import INTERRUPTED, NextInput
from mstar.walk.model import RouteRun, WalkCall
from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue


class RequestLifecycle:
    """All requests of one conductor."""

    def __init__(
        self,
        dispatcher: WalkDispatcher,
        admission: Admission,
        attempts: Attempts,
        versions: WeightsVersions,
        outbox: Outbox,
        spans: RequestSpans,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self._submitted: dict[str, None] = {}
        """Ids of requests that `take_submitted` has not returned, in order."""
        self._numbers = count()
        self._requests_by_model: Counter[str] = Counter()
        self._dispatcher = dispatcher
        self.lookaheads = Lookaheads(dispatcher, spans)
        self._admission = admission
        self._attempts = attempts
        self._versions = versions
        self._outbox = outbox
        self._spans = spans
        self._are_inputs_closed = False

    # ---------------------------------------------------------------- submission
    def submit(self, now: float, frontend: m.Peer, model: ConductorModel, submit: m.Submit) -> None:
        """Queue an accepted request."""
        request = self.requests[submit.rid] = Request(submit, model, frontend, now)
        request.number = next(self._numbers)
        self._submitted[submit.rid] = None
        self._requests_by_model[submit.model] += 1
        self._versions.set_version(request, self._versions.version_of_finished(submit.rid))
        request.predicted_ttft_s = self._admission.predict_ttft_s(now, submit)
        self._spans.on_queued(submit.rid)
        self._admission.enqueue(submit)
        for client_input in submit.inputs:
            self.on_client_input(now, client_input)

    def take_submitted(self) -> list[str]:
        """Ids of the requests that were submitted since the last call."""
        submitted = [*self._submitted]
        self._submitted.clear()
        return submitted

    def models(self) -> set[str]:
        """Return the models of all requests."""
        return {*self._requests_by_model}

    def queued_models(self) -> set[str]:
        """Return the models of the requests that wait to start."""
        return self._admission.queued_models()

    def start(self, now: float, rid: str) -> None:
        """Start a request that was admitted."""
        request = self.requests[rid]
        request.attempt = self._attempts.next()
        self._spans.on_attempt(request)
        self.start_route(now, request)

    # ---------------------------------------------------------------- route
    def start_route(self, now: float, request: Request) -> None:
        """Start the route from its beginning."""
        hit("conductor.start_route")
        request.walk_count = request.inputs.consumed = request.last_lookahead = 0
        request.is_awaiting_input = False
        request.states.restart()
        value = request.submit.request.content
        if isinstance(value, UnreadableValue):
            self.finish(now, request, FinishStatus("failed", "Unreadable", value.text))
            return
        model = request.model.model
        try:
            request.route = RouteRun(
                model, value, lambda owner, kind: StateHandle(request.states, owner.name, kind.__name__)
            )
        except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
            self.finish(now, request, FinishStatus.from_exception(error))
            return
        self.advance(now, request, None)

    def advance(self, now: float, request: Request, result: Any) -> None:
        """Resume the route with a result until it needs a walk to run, waits for input, or ends."""
        hit("conductor.advance")
        route = request.route
        assert route is not None
        while True:
            try:
                call = route.advance(result)
            except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
                self.finish(now, request, FinishStatus.from_exception(error))
                return
            if call is None:
                self.finish(now, request, FinishStatus("ok", result=route.result))
                return
            if isinstance(call, NextInput):
                answer = m.Value(call.answer)
                turn = m.TurnFinished(request.rid, request.inputs.consumed, request.totals, answer)
                self._outbox.send(request.frontend, turn)
                if not request.inputs.has_unread and not self._are_inputs_closed:
                    request.is_awaiting_input = True
                    break
                result = request.consume_input()
                continue
            number = request.walk_count
            interruption = request.inputs.find_interruption(number) if call.is_interruptible else None
            if interruption is not None:
                request.record_interrupted(call.name, interruption)
            elif number >= len(request.walk_results) or not request.walk_results[number].is_pure:
                del request.walk_results[number:]
                finished = self._start_walk(now, request, call, number)
                if finished is None:
                    break
                result = self._dispatcher.complete(request, finished)
                del finished  # its inputs can be states that the route is about to drop
                continue
            request.walk_count += 1
            result = request.walk_results[number].result
        if (route.lookaheads or request.lookaheads) and request.route is route:
            self.lookaheads.update(now, request, route.lookaheads)

    def _start_walk(self, now: float, request: Request, call: WalkCall[Any, Any], number: int) -> WalkRun | None:
        """Start a walk; return it if it is a lookahead that has finished before."""
        if call.lookahead_index:
            committed = self.lookaheads.commit(now, request, call.lookahead_index)
            if committed is not None:
                return None if committed.pending_seats else committed
        plan = request.model.plans.walks[call.name]
        request.walk_run = WalkRun(call, plan, number, waiting_since=now)
        request.max_walk_started = max(request.max_walk_started, number)
        if any(handle.states is not request.states for handle in request.walk_run.handles.values()):
            text = (
                f"walk `{call.name}` got a state of another request\n  fix: create the state in the route that uses it"
            )
            self.finish(now, request, FinishStatus.from_exception(RouteError(text)))
        elif is_resubmitted(request.submit) and call.name in request.model.non_idempotent_walks:
            self.finish(now, request, FinishStatus.not_retryable("the conductor restarted", call.name))
        else:
            self._dispatcher.place(now, request)
        return None

    def place_waiting(self, now: float) -> None:
        """Start the walks that wait and whose seats all have an eligible worker now."""
        for request in self.find_waiting(self._dispatcher.can_place):
            self._dispatcher.place(now, request)

    def find_waiting(self, is_wanted: Callable[[Request], bool]) -> list[Request]:
        """Return requests whose next walk has no workers yet; see `WaitingWalks.find`."""
        return self._dispatcher.waiting.find(is_wanted)

    # ---------------------------------------------------------------- client input
    def on_client_input(self, now: float, message: m.ClientInput) -> None:
        """Add an input of the client. It can interrupt the walk in execution, or resume a route that waits."""
        request = self.requests.get(message.rid)
        if request is None:
            return
        hit("conductor.on_client_input")
        client_input = request.add_input(message)
        if client_input is None:
            return
        if isinstance(client_input.value, UnreadableValue):
            self.finish(now, request, FinishStatus("failed", "Unreadable", client_input.value.text))
            return
        request.last_input_at, request.predicted_ttft_s = now, 0.0
        request.next_due.clear()
        run = request.walk_run
        is_interrupted = (
            run is not None
            and run.call.is_interruptible
            and request.inputs.find_interruption(run.number) is client_input
        )
        if run is not None and is_interrupted:
            self._spans.on_walk_finished(request.rid)
            self._dispatcher.release_workers(run)
            request.states.dropped += run.state_locations.values()
            self._attempts.release(request, keeps_states=True)
            request.attempt = self._attempts.next()
            request.walk_run = None
            request.record_interrupted(run.call.name, client_input)
            request.walk_count += 1
        attempt = max(request.attempt, self._attempts.first)  # a queued request has no attempt of this conductor yet
        accepted = m.InputAccepted(request.rid, message.index, client_input.walk, attempt, request.totals)
        self._outbox.send(request.frontend, accepted)
        if is_interrupted:
            self.advance(now, request, INTERRUPTED)
        elif request.is_awaiting_input:
            self.advance(now, request, request.consume_input())

    def close_inputs(self, now: float) -> None:
        """Wait for no further client inputs: routes that wait get the end of inputs."""
        self._are_inputs_closed = True
        for request in [request for request in self.requests.values() if request.is_awaiting_input]:
            self.advance(now, request, request.consume_input())

    # ---------------------------------------------------------------- end
    def cancel(self, now: float, rid: str) -> None:
        """End a request whose client left."""
        hit("conductor.cancel")
        if (request := self.requests.get(rid)) is not None:
            self.finish(now, request, FinishStatus("cancelled"))

    def finish(self, now: float, request: Request, outcome: FinishStatus) -> None:
        """End a request and report its status to the front end."""
        hit("conductor.finish")
        if request.walk_run is not None:
            self._dispatcher.release_workers(request.walk_run)
            request.walk_run = None
        if request.route is not None and not request.route.is_done:
            request.route.close()
        totals = request.totals if outcome.status == "ok" else {}
        result = None if isinstance(outcome.result, StateHandle) else outcome.result  # a state ends with its request
        value, failure = m.Value(result), outcome.failure
        end = m.RequestFinished(request.rid, outcome.status, totals, value, outcome.error, outcome.text, failure)
        if outcome.error:
            reason = failure.summary(outcome.error) if failure.traceback else f"{outcome.error}: {outcome.text}"
            self._spans.on_failed(request.rid, reason)
        self._outbox.send(request.frontend, end)
        self._remove(now, request)

    def reject(self, now: float, request: Request, rejected: m.RequestRejected) -> None:
        """End a request that is still queued: nothing of it has run."""
        self._outbox.send(request.frontend, rejected)
        self._remove(now, request)

    def _remove(self, now: float, request: Request) -> None:
        hit("conductor.remove_request")
        del self.requests[request.rid]
        self._submitted.pop(request.rid, None)
        count_down(self._requests_by_model, request.submit.model)
        self._dispatcher.waiting.remove(request.rid)
        self._versions.on_request_finished(request)
        self._admission.on_finished(now, request.rid)
        self._spans.on_finished(request.rid)
        self._attempts.release(request, can_wait=self._admission.has_many_free_slots)
        request.drop_references()
