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

from mstar.conductor.requests import Kept, Record, Request, StateHandle, Tour
from mstar.conductor.seating import needed, seat
from mstar.errors import RouteError
from mstar.failpoints import hit
from mstar.walk.model import RouteRun, WalkCall
from mstar.walk.said import CUT, More, Said, totals_after
from mstar.wire import messages as m
from mstar.wire.frame import Unreadable

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore

PATIENT = 10
"""So many times longer one waits for a worker that starts, as large weights take."""
MARGIN = 2
"""A suspect runs alone until it is so many calls past where it was when the worker died."""


@dataclass(frozen=True, slots=True)
class How:
    """How a request has ended."""

    status: str
    error: str = ""
    text: str = ""
    result: Any = None

    @classmethod
    def raised(cls, error: Exception) -> How:
        """It ends with what an author's program raised."""
        return cls("failed", type(error).__name__, str(error))


# ---------------------------------------------------------------- the route
def begin(core: ConductorCore, now: float, request: Request) -> None:
    """Start a request's route from its beginning."""
    hit("conductor.begin")
    request.walks = request.ears.heard = 0
    request.is_waiting = False
    request.handles.clear()
    request.forks.clear()
    value = request.submit.request.it
    if isinstance(value, Unreadable):
        finish(core, now, request, How("failed", "Unreadable", value.text))
        return
    model = core.served[request.submit.model].model
    try:
        request.route = RouteRun(model, value, lambda owner, kind: StateHandle(request, owner.name, kind.__name__))
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        finish(core, now, request, How.raised(error))
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
            finish(core, now, request, How.raised(error))
            return
        if wanted is None:
            finish(core, now, request, How("ok", result=route.result))
            return
        if isinstance(wanted, More):
            answered = m.Answered(request.rid, request.ears.heard, request.totals, m.Value(wanted.answer))
            core.send(request.front, answered)
            if not request.ears.has_more and not core.is_draining:
                request.is_waiting = True
                return
            result = request.ears.hear()
            continue
        number = request.walks
        cut = request.ears.cutting(number) if wanted.is_cuttable else None
        if cut is not None:
            _record_cut(request, wanted.name, cut)
        elif number >= len(request.records) or not request.records[number].is_pure:
            break
        request.walks += 1
        result = request.records[number].result
    del request.records[number:]
    _tour(core, now, request, wanted, number)


def _record_cut(request: Request, name: str, cut: Said) -> None:
    """Take down that a walk was cut. It touched nothing, so this holds whatever happens to workers."""
    before = request.totals
    counts = {kind: count - before.get(kind, 0) for kind, count in totals_after(before, cut).items()}
    request.records[request.walks :] = [Record(name, CUT, counts, is_pure=True)]


# ---------------------------------------------------------------- what the client says
def hear(core: ConductorCore, now: float, request: Request, say: m.Say) -> None:
    """The client says more: the route may wait for it, and a walk may be cut by it."""
    hit("conductor.hear")
    said = request.listen(say)
    if said is None:
        return
    if isinstance(said.value, Unreadable):
        finish(core, now, request, How("failed", "Unreadable", said.value.text))
        return
    request.asked, request.forecast = now, 0.0
    request.due.clear()
    tour = request.tour
    is_cut = tour is not None and tour.call.is_cuttable and request.ears.cutting(tour.number) is said
    if tour is not None and is_cut:
        core.timeline.arrived(request.rid)
        vacate(core, tour)
        core.abandon(request, keeps_states=True)
        request.attempt = next(core.attempts)
        request.tour = None
        _record_cut(request, tour.call.name, said)
        request.walks += 1
    attempt = max(request.attempt, core.first_attempt)  # it may not have begun, under this conductor
    core.send(request.front, m.Heard(request.rid, say.number, said.walk, attempt, request.totals))
    if is_cut:
        advance(core, now, request, CUT)
    elif request.is_waiting:
        _go_on(core, now, request)


def hear_no_more(core: ConductorCore, now: float) -> None:
    """Nobody is waited for any longer: whatever clients may want to say, it is as if they said no more."""
    for request in [one for one in core.requests.values() if one.is_waiting]:
        _go_on(core, now, request)


def _go_on(core: ConductorCore, now: float, request: Request) -> None:
    request.is_waiting = False
    advance(core, now, request, request.ears.hear())


def _tour(core: ConductorCore, now: float, request: Request, call: WalkCall[Any, Any], number: int) -> None:
    plan = core.served[request.submit.model].plans.walks[call.name]
    request.tour = Tour(call, plan, number, since=now)
    request.furthest = max(request.furthest, number)
    foreign = [handle for handle in request.tour.handles.values() if handle.request is not request]
    if foreign:
        error = RouteError(
            f"walk `{call.name}` was given a state of another request\n  fix: a state serves one request"
        )
        finish(core, now, request, How.raised(error))
    elif request.submit.after >= 0 and call.name in core.served[request.submit.model].once:
        text = f"it was begun before, and walk `{call.name}` does what must not be done twice"
        finish(core, now, request, How("not_replayed", "NotReplayed", text))
    else:
        place(core, request)


def place(core: ConductorCore, request: Request) -> None:
    """Find workers for the walk that is to run, and have it begun; or leave it waiting."""
    hit("conductor.place")
    tour = request.tour
    assert tour is not None
    able = core.scaling.seatable(core, request, tour.plan)
    seats = seat(tour, able, {name: worker.load for name, worker in core.workers.items()})
    if seats is None:
        return
    tour.seats, tour.left = seats, set(range(len(seats)))
    if seats:
        request.edition = core.workers[seats[0].name].edition
    request.has_emitted |= tour.call.name in core.served[request.submit.model].emits
    core.timeline.began(request)
    _tell_forks(core, request)
    first, now = request.totals, core.timeline.now
    for peer, wanted in needed(tour.plan, seats).items():
        core.workers[peer.name].load += 1
        request.workers.add(peer)
        inputs = {index: _input(core, request, tour, index, peer) for index in sorted(wanted)}
        start = m.Start(
            request.rid,
            request.attempt,
            tour.number,
            request.submit.model,
            tour.call.name,
            seats,
            inputs,
            first,
            request.front,
            request.submit.tenant,
            request.careful,
            request.submit.pace,
            request.asked + request.submit.pace.soon - now,
            {kind: due - now for kind, due in request.due.items()},
            request.forecast,
        )
        core.send(peer, start)


def place_waiting(core: ConductorCore) -> None:
    """A worker has come: it may be what some requests wait for."""
    for request in list(core.requests.values()):
        if request.tour is not None and not request.tour.seats:
            place(core, request)


def _tell_forks(core: ConductorCore, request: Request) -> None:
    for kept, copy in request.forks:
        core.send(kept.peer, m.ForkState(request.rid, request.attempt, kept.number, copy.number))
    request.forks.clear()


def _input(core: ConductorCore, request: Request, tour: Tour, index: int, peer: m.Peer) -> m.Input:
    value = tour.call.arguments[tour.plan.input_names[index]]
    if not isinstance(value, StateHandle):
        return m.Given(m.Value(value))
    if value.kept is None:
        return m.Fresh(value.component, value.kind)
    if value.kept.peer == peer:
        return m.Held(value.kept.number)
    order = m.SendState(request.rid, request.attempt, value.kept.number, peer, tour.number, index)
    core.send(value.kept.peer, order)
    return m.Coming()


def wait(core: ConductorCore, now: float, request: Request) -> None:
    """A request has no worker: how long has that been?"""
    tour = request.tour
    assert tour is not None
    waited = now - tour.since
    if core.scaling.is_outdated(core, request, tour.plan):
        _begin_otherwise(core, now, request)
    elif waited > core.limits.unavailable * (PATIENT if core.scaling.is_coming(core, tour.plan) else 1):
        finish(core, now, request, How("unavailable", "Unavailable", "no worker came back in time"))


def _begin_otherwise(core: ConductorCore, now: float, request: Request) -> None:
    """Nobody has the weights any more that a request began with: if its client has nothing of it, it takes others."""
    if request.has_emitted or is_unrepeatable(core, request):
        text = f"edition {request.edition} of the weights, with which it began, is no longer served"
        finish(core, now, request, How("not_replayed", "NotReplayed", text))
    else:
        request.edition = None
        restart(core, now, request, f"edition {core.scaling.edition} of the weights came", is_afresh=True)


def is_unrepeatable(core: ConductorCore, request: Request) -> bool:
    """Whether a walk that would have to be run again must not be."""
    again = [record.name for record in request.records if not record.is_pure]
    if request.tour is not None and request.tour.seats:
        again.append(request.tour.call.name)
    return not core.served[request.submit.model].once.isdisjoint(again)


# ---------------------------------------------------------------- a walk ends
def arrive(core: ConductorCore, now: float, request: Request, peer: m.Peer, done: m.Done) -> None:
    """A seat has come to its end; perhaps it was the last one."""
    hit("conductor.arrive")
    tour = request.tour
    if tour is None or tour.number != done.walk or done.seat not in tour.left:
        core.late += 1
        return
    tour.left.discard(done.seat)
    for index, output in done.outputs.items():
        tour.outputs[index] = Kept(peer, output.state) if isinstance(output, m.Held) else output.value.it
        if isinstance(tour.outputs[index], Unreadable):
            restart(core, now, request, tour.outputs[index].text)
            return
    for index, number in done.states.items():
        tour.moved[index] = Kept(peer, number)
    for kind, due in done.due_in.items():
        request.due[kind] = now + due
    for kind, count in done.counts.items():  # a worker with two seats counts for both
        tour.counts[kind] = max(tour.counts[kind], count)
    if not tour.left:
        _conclude(core, now, request, tour)


def _conclude(core: ConductorCore, now: float, request: Request, tour: Tour) -> None:
    hit("conductor.conclude")
    core.timeline.arrived(request.rid)
    vacate(core, tour)
    request.tour = None
    handles = tour.handles
    named: dict[Kept, StateHandle] = {}
    for index, kept in tour.moved.items():
        handle = handles[index]
        if handle.kept is not None and core.is_alive(handle.kept.peer):
            core.send(handle.kept.peer, m.FreeStates(request.rid, request.attempt, (handle.kept.number,)))
        handle.kept = kept
        named[kept] = handle
    values: list[Any] = []
    for _, value in sorted(tour.outputs.items()):
        if isinstance(value, Kept) and value not in named:
            named[value] = StateHandle(request, "", "", value)
        values.append(named[value] if isinstance(value, Kept) else value)
    result = tuple(values) if tour.plan.gives_tuple else values[0] if values else None
    request.records.append(Record(tour.call.name, result, dict(tour.counts), is_pure=not named and not handles))
    request.walks += 1
    if tour.number >= request.furthest:  # not when it only comes again to where a worker died
        request.careful = 0
    advance(core, now, request, result)


def vacate(core: ConductorCore, tour: Tour) -> None:
    """Nobody sits there any more."""
    hit("conductor.vacate")
    for peer in set(tour.seats):
        if core.is_alive(peer):
            core.workers[peer.name].load -= 1
    tour.seats = ()


# ---------------------------------------------------------------- trying again, and giving up
def restart(core: ConductorCore, now: float, request: Request, why: str, *, is_afresh: bool = False) -> None:
    """Try a request again: a worker that it needs is gone, or something could not be read.

    It begins afresh, and what is on record does not count, if an emission of a walk that has ended was lost.
    """
    hit("conductor.restart")
    handles = request.handles
    is_whole = not is_afresh and all(one.kept is None or core.is_alive(one.kept.peer) for one in handles)
    tour = request.tour
    if tour is None and (is_whole or not request.is_waiting):
        return
    request.restarts += 1
    if request.restarts > core.limits.restarts:
        finish(core, now, request, How("unavailable", "Unavailable", f"it was tried {request.restarts} times"))
        return
    again = [] if is_whole else [record.name for record in request.records if is_afresh or not record.is_pure]
    if tour is not None and tour.seats:
        again.append(tour.call.name)
    if once := [name for name in again if name in core.served[request.submit.model].once]:
        text = f"a worker was lost, and walk `{once[0]}` does what must not be done twice"
        finish(core, now, request, How("not_replayed", "NotReplayed", text))
        return
    if is_afresh:
        request.records.clear()
    if tour is not None:
        vacate(core, tour)
    core.abandon(request, keeps_states=is_whole)
    request.forecast = 0.0
    request.due.clear()  # whatever the client had, it waits now
    request.attempt = next(core.attempts)
    core.timeline.tried(request, why)
    if tour is not None and is_whole:
        request.tour = Tour(tour.call, tour.plan, tour.number, since=now)
        place(core, request)
    else:
        request.tour = None
        if request.route is not None:
            request.route.close()
        begin(core, now, request)


def suspect(core: ConductorCore, now: float, peer: m.Peer, suspects: Sequence[m.Suspect]) -> None:
    """These requests were being computed when a worker died. One that was alone, where it died before, is why."""
    for one in suspects:
        request = core.requests.get(one.rid)
        if request is None or peer in request.deaths:
            continue
        is_again = any(abs(calls - one.calls) <= 1 for calls in request.deaths.values())
        request.deaths[peer] = one.calls
        request.careful = one.calls + MARGIN  # where it was last: it may have died elsewhere for another reason
        if is_again and len(suspects) == 1:
            text = "two workers died at the same step of it, the second with nothing else to do; it is not tried again"
            finish(core, now, request, How("poison", "Poison", text))


def finish(core: ConductorCore, now: float, request: Request, how: How) -> None:
    """A request is over."""
    hit("conductor.finish")
    if request.tour is not None:
        vacate(core, request.tour)
        request.tour = None
    if request.route is not None and not request.route.is_done:
        request.route.close()
    request.handles.clear()
    totals = request.totals if how.status == "ok" else {}
    result = None if isinstance(how.result, StateHandle) else how.result  # a state ends with its request
    core.send(request.front, m.Finished(request.rid, how.status, totals, m.Value(result), how.error, how.text))
    core.ended(now, request)
