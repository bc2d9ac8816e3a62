"""How a request goes on: its route asks for walks, workers are found for them, what they gave goes back to the route.

A request is tried again when a worker that it needs is lost. A walk that has ended and touched no state is not run
again: what it gave is on record. If the route's states are all alive, only the walk that was running begins anew;
otherwise the route runs again from its beginning, and so do all walks that touched a state. Everything is computed as
before, so the client, who counts its emissions, notices nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstar.conductor.assignment import assign_workers, inputs_by_worker
from mstar.conductor.requests import Request, StateHandle, StateLocation, WalkResult, WalkRun
from mstar.errors import RouteError
from mstar.failpoints import hit
from mstar.walk.client_input import INTERRUPTED, ClientInput, NextInput, emission_totals_after
from mstar.walk.model import RouteRun, WalkCall
from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore

STARTING_WORKER_WAIT_FACTOR = 10
"""So many times longer one waits for a worker that starts, as large weights take."""
ISOLATION_MARGIN_CALLS = 2
"""A suspect runs alone until it is so many calls past where it was when the worker died."""


@dataclass(frozen=True, slots=True)
class FinishStatus:
    """How a request has ended."""

    status: str
    error: str = ""
    text: str = ""
    result: Any = None

    @classmethod
    def from_exception(cls, error: Exception) -> FinishStatus:
        """It ends with what an author's program raised."""
        return cls("failed", type(error).__name__, str(error))


# ---------------------------------------------------------------- the route
def start_route(core: ConductorCore, now: float, request: Request) -> None:
    """Start a request's route from its beginning."""
    hit("conductor.start_route")
    request.walk_count = request.inputs.consumed = 0
    request.is_awaiting_input = False
    request.handles.clear()
    request.pending_forks.clear()
    value = request.submit.request.content
    if isinstance(value, UnreadableValue):
        finish(core, now, request, FinishStatus("failed", "Unreadable", value.text))
        return
    model = core.models[request.submit.model].model
    try:
        request.route = RouteRun(model, value, lambda owner, kind: StateHandle(request, owner.name, kind.__name__))
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        finish(core, now, request, FinishStatus.from_exception(error))
        return
    advance(core, now, request, None)


def advance(core: ConductorCore, now: float, request: Request, result: Any) -> None:
    """Give the route what it waited for, and have the next walk begun."""
    hit("conductor.advance")
    route = request.route
    assert route is not None
    while True:
        try:
            wanted = route.advance(result)
        except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
            finish(core, now, request, FinishStatus.from_exception(error))
            return
        if wanted is None:
            finish(core, now, request, FinishStatus("ok", result=route.result))
            return
        if isinstance(wanted, NextInput):
            answered = m.TurnFinished(request.rid, request.inputs.consumed, request.totals, m.Value(wanted.answer))
            core.send(request.frontend, answered)
            if not request.inputs.has_unread and not core.is_draining:
                request.is_awaiting_input = True
                return
            result = request.inputs.consume()
            continue
        number = request.walk_count
        cut = request.inputs.find_interruption(number) if wanted.is_interruptible else None
        if cut is not None:
            _record_interrupted(request, wanted.name, cut)
        elif number >= len(request.walk_results) or not request.walk_results[number].is_pure:
            break
        request.walk_count += 1
        result = request.walk_results[number].result
    del request.walk_results[number:]
    _start_walk(core, now, request, wanted, number)


def _record_interrupted(request: Request, name: str, interruption: ClientInput) -> None:
    """Take down that a walk was cut. It touched nothing, so this holds whatever happens to workers."""
    before = request.totals
    counts = {kind: count - before.get(kind, 0) for kind, count in emission_totals_after(before, interruption).items()}
    request.walk_results[request.walk_count :] = [WalkResult(name, INTERRUPTED, counts, is_pure=True)]


# ---------------------------------------------------------------- what the client says
def on_client_input(core: ConductorCore, now: float, request: Request, client_input: m.ClientInput) -> None:
    """The client says more: the route may wait for it, and a walk may be cut by it."""
    hit("conductor.on_client_input")
    said = request.add_input(client_input)
    if said is None:
        return
    if isinstance(said.value, UnreadableValue):
        finish(core, now, request, FinishStatus("failed", "Unreadable", said.value.text))
        return
    request.last_input_at, request.predicted_ttft_s = now, 0.0
    request.next_due.clear()
    tour = request.walk_run
    is_cut = tour is not None and tour.call.is_interruptible and request.inputs.find_interruption(tour.number) is said
    if tour is not None and is_cut:
        core.request_spans.on_walk_finished(request.rid)
        release_workers(core, tour)
        core.release_attempt(request, keeps_states=True)
        request.attempt = next(core.attempts)
        request.walk_run = None
        _record_interrupted(request, tour.call.name, said)
        request.walk_count += 1
    attempt = max(request.attempt, core.first_attempt)  # it may not have begun, under this conductor
    core.send(request.frontend, m.InputAccepted(request.rid, client_input.index, said.walk, attempt, request.totals))
    if is_cut:
        advance(core, now, request, INTERRUPTED)
    elif request.is_awaiting_input:
        _resume_route(core, now, request)


def close_inputs(core: ConductorCore, now: float) -> None:
    """Nobody is waited for any longer: whatever clients may want to say, it is as if they said no more."""
    for request in [one for one in core.requests.values() if one.is_awaiting_input]:
        _resume_route(core, now, request)


def _resume_route(core: ConductorCore, now: float, request: Request) -> None:
    request.is_awaiting_input = False
    advance(core, now, request, request.inputs.consume())


def _start_walk(core: ConductorCore, now: float, request: Request, call: WalkCall[Any, Any], number: int) -> None:
    plan = core.models[request.submit.model].plans.walks[call.name]
    request.walk_run = WalkRun(call, plan, number, waiting_since=now)
    request.max_walk_started = max(request.max_walk_started, number)
    foreign = [handle for handle in request.walk_run.handles.values() if handle.request is not request]
    if foreign:
        error = RouteError(
            f"walk `{call.name}` was given a state of another request\n  fix: a state serves one request"
        )
        finish(core, now, request, FinishStatus.from_exception(error))
    elif request.submit.last_seen_attempt >= 0 and call.name in core.models[request.submit.model].non_idempotent_walks:
        text = f"it was begun before, and walk `{call.name}` does what must not be done twice"
        finish(core, now, request, FinishStatus("not_retryable", "NotRetryable", text))
    else:
        place(core, request)


def place(core: ConductorCore, request: Request) -> None:
    """Find workers for the walk that is to run, and have it begun; or leave it waiting."""
    hit("conductor.place")
    tour = request.walk_run
    assert tour is not None
    able = core.autoscaler.eligible_workers(core, request, tour.plan)
    seats = assign_workers(tour, able, {name: worker.running_walks for name, worker in core.workers.items()})
    if seats is None:
        return
    tour.seats, tour.pending_seats = seats, set(range(len(seats)))
    if seats:
        request.weights_version = core.workers[seats[0].name].weights_version
    request.has_emitted |= tour.call.name in core.models[request.submit.model].emitting_walks
    core.request_spans.on_walk_started(request)
    _send_forks(core, request)
    first, now = request.totals, core.request_spans.now
    for peer, wanted in inputs_by_worker(tour.plan, seats).items():
        core.workers[peer.name].running_walks += 1
        request.workers.add(peer)
        inputs = {index: _walk_input(core, request, tour, index, peer) for index in sorted(wanted)}
        start = m.StartWalk(
            request.rid,
            request.attempt,
            tour.number,
            request.submit.model,
            tour.call.name,
            seats,
            inputs,
            first,
            request.frontend,
            request.submit.tenant,
            request.isolate_at_call,
            request.submit.slo,
            request.last_input_at + request.submit.slo.ttft_target_s - now,
            {kind: due - now for kind, due in request.next_due.items()},
            request.predicted_ttft_s,
        )
        core.send(peer, start)


def place_waiting(core: ConductorCore) -> None:
    """A worker has come: it may be what some requests wait for."""
    for request in list(core.requests.values()):
        if request.walk_run is not None and not request.walk_run.seats:
            place(core, request)


def _send_forks(core: ConductorCore, request: Request) -> None:
    for kept, copy in request.pending_forks:
        core.send(kept.peer, m.ForkState(request.rid, request.attempt, kept.number, copy.number))
    request.pending_forks.clear()


def _walk_input(core: ConductorCore, request: Request, walk_run: WalkRun, index: int, peer: m.Peer) -> m.WalkInput:
    value = walk_run.call.arguments[walk_run.plan.input_names[index]]
    if not isinstance(value, StateHandle):
        return m.ValueInput(m.Value(value))
    if value.location is None:
        return m.NewState(value.component, value.kind)
    if value.location.peer == peer:
        return m.LocalState(value.location.number)
    order = m.SendState(request.rid, request.attempt, value.location.number, peer, walk_run.number, index)
    core.send(value.location.peer, order)
    return m.IncomingState()


def check_worker_wait(core: ConductorCore, now: float, request: Request) -> None:
    """A request has no worker: how long has that been?"""
    tour = request.walk_run
    assert tour is not None
    waited = now - tour.waiting_since
    if core.autoscaler.is_weights_version_lost(core, request, tour.plan):
        _restart_with_new_weights(core, now, request)
    elif waited > core.limits.worker_wait_s * (
        STARTING_WORKER_WAIT_FACTOR if core.autoscaler.is_worker_starting(core, tour.plan) else 1
    ):
        finish(core, now, request, FinishStatus("unavailable", "Unavailable", "no worker came back in time"))


def _restart_with_new_weights(core: ConductorCore, now: float, request: Request) -> None:
    """Nobody has the weights any more that a request began with: if its client has nothing of it, it takes others."""
    if request.has_emitted or is_non_retryable(core, request):
        text = f"edition {request.weights_version} of the weights, with which it began, is no longer served"
        finish(core, now, request, FinishStatus("not_retryable", "NotRetryable", text))
    else:
        request.weights_version = None
        retry(core, now, request, f"edition {core.autoscaler.weights_version} of the weights came", from_scratch=True)


def is_non_retryable(core: ConductorCore, request: Request) -> bool:
    """Whether a walk that would have to be run again must not be."""
    again = [record.name for record in request.walk_results if not record.is_pure]
    if request.walk_run is not None and request.walk_run.seats:
        again.append(request.walk_run.call.name)
    return not core.models[request.submit.model].non_idempotent_walks.isdisjoint(again)


# ---------------------------------------------------------------- a walk ends
def on_seat_done(core: ConductorCore, now: float, request: Request, peer: m.Peer, done: m.SeatDone) -> None:
    """A seat has come to its end; perhaps it was the last one."""
    hit("conductor.on_seat_done")
    tour = request.walk_run
    if tour is None or tour.number != done.walk_index or done.seat not in tour.pending_seats:
        core.stale_messages += 1
        return
    tour.pending_seats.discard(done.seat)
    for index, output in done.outputs.items():
        tour.outputs[index] = (
            StateLocation(peer, output.state) if isinstance(output, m.LocalState) else output.value.content
        )
        if isinstance(tour.outputs[index], UnreadableValue):
            retry(core, now, request, tour.outputs[index].text)
            return
    for index, number in done.states.items():
        tour.state_locations[index] = StateLocation(peer, number)
    for kind, due in done.due_in_s.items():
        request.next_due[kind] = now + due
    for kind, count in done.emission_counts.items():  # a worker with two seats counts for both
        tour.emission_counts[kind] = max(tour.emission_counts[kind], count)
    if not tour.pending_seats:
        _finish_walk(core, now, request, tour)


def _finish_walk(core: ConductorCore, now: float, request: Request, walk_run: WalkRun) -> None:
    hit("conductor.finish_walk")
    core.request_spans.on_walk_finished(request.rid)
    release_workers(core, walk_run)
    request.walk_run = None
    handles = walk_run.handles
    named: dict[StateLocation, StateHandle] = {}
    for index, kept in walk_run.state_locations.items():
        handle = handles[index]
        if handle.location is not None and core.is_alive(handle.location.peer):
            core.send(handle.location.peer, m.FreeStates(request.rid, request.attempt, (handle.location.number,)))
        handle.location = kept
        named[kept] = handle
    values: list[Any] = []
    for _, value in sorted(walk_run.outputs.items()):
        if isinstance(value, StateLocation) and value not in named:
            named[value] = StateHandle(request, "", "", value)
        values.append(named[value] if isinstance(value, StateLocation) else value)
    result = tuple(values) if walk_run.plan.gives_tuple else values[0] if values else None
    request.walk_results.append(
        WalkResult(walk_run.call.name, result, dict(walk_run.emission_counts), is_pure=not named and not handles)
    )
    request.walk_count += 1
    if walk_run.number >= request.max_walk_started:  # not when it only comes again to where a worker died
        request.isolate_at_call = 0
    advance(core, now, request, result)


def release_workers(core: ConductorCore, walk_run: WalkRun) -> None:
    """Nobody sits there any more."""
    hit("conductor.release_workers")
    for peer in set(walk_run.seats):
        if core.is_alive(peer):
            core.workers[peer.name].running_walks -= 1
    walk_run.seats = ()


# ---------------------------------------------------------------- trying again, and giving up
def retry(core: ConductorCore, now: float, request: Request, reason: str, *, from_scratch: bool = False) -> None:
    """Try a request again: a worker that it needs is gone, or something could not be read.

    It begins afresh, and what is on record does not count, if an emission of a walk that has ended was lost.
    """
    hit("conductor.retry")
    handles = request.handles
    is_whole = not from_scratch and all(one.location is None or core.is_alive(one.location.peer) for one in handles)
    tour = request.walk_run
    if tour is None and (is_whole or not request.is_awaiting_input):
        return
    request.retries += 1
    if request.retries > core.limits.max_retries:
        finish(core, now, request, FinishStatus("unavailable", "Unavailable", f"it was tried {request.retries} times"))
        return
    again = [] if is_whole else [record.name for record in request.walk_results if from_scratch or not record.is_pure]
    if tour is not None and tour.seats:
        again.append(tour.call.name)
    if once := [name for name in again if name in core.models[request.submit.model].non_idempotent_walks]:
        text = f"a worker was lost, and walk `{once[0]}` does what must not be done twice"
        finish(core, now, request, FinishStatus("not_retryable", "NotRetryable", text))
        return
    if from_scratch:
        request.walk_results.clear()
    if tour is not None:
        release_workers(core, tour)
    core.release_attempt(request, keeps_states=is_whole)
    request.predicted_ttft_s = 0.0
    request.next_due.clear()  # whatever the client had, it waits now
    request.attempt = next(core.attempts)
    core.request_spans.on_attempt(request, reason)
    if tour is not None and is_whole:
        request.walk_run = WalkRun(tour.call, tour.plan, tour.number, waiting_since=now)
        place(core, request)
    else:
        request.walk_run = None
        if request.route is not None:
            request.route.close()
        start_route(core, now, request)


def isolate_suspects(core: ConductorCore, now: float, peer: m.Peer, suspects: Sequence[m.Suspect]) -> None:
    """These requests were being computed when a worker died. One that was alone, where it died before, is why."""
    for one in suspects:
        request = core.requests.get(one.rid)
        if request is None or peer in request.worker_deaths:
            continue
        is_again = any(abs(calls - one.calls_completed) <= 1 for calls in request.worker_deaths.values())
        request.worker_deaths[peer] = one.calls_completed
        request.isolate_at_call = (
            one.calls_completed + ISOLATION_MARGIN_CALLS
        )  # where it was last: it may have died elsewhere for another reason
        if is_again and len(suspects) == 1:
            text = "two workers died at the same step of it, the second with nothing else to do; it is not tried again"
            finish(core, now, request, FinishStatus("poison", "Poison", text))


def finish(core: ConductorCore, now: float, request: Request, outcome: FinishStatus) -> None:
    """A request is over."""
    hit("conductor.finish")
    if request.walk_run is not None:
        release_workers(core, request.walk_run)
        request.walk_run = None
    if request.route is not None and not request.route.is_done:
        request.route.close()
    request.handles.clear()
    totals = request.totals if outcome.status == "ok" else {}
    result = None if isinstance(outcome.result, StateHandle) else outcome.result  # a state ends with its request
    core.send(
        request.frontend,
        m.RequestFinished(request.rid, outcome.status, totals, m.Value(result), outcome.error, outcome.text),
    )
    core.remove_request(now, request)
