"""How a walk begins, goes on and ends at a worker.

Every step of an author's program that needs no op happens in here, and whatever it raises ends its request: nothing
leaves this module but what is put into the core's lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstar.failpoints import hit
from mstar.plan import wires
from mstar.plan.run import Run
from mstar.plan.run import complete as complete_calls
from mstar.wire import messages as m
from mstar.wire.frame import Unreadable
from mstar.wire.pace import Playing
from mstar.worker.commands import Cargo, Export, Exported, Send, StateRef
from mstar.worker.tours import Guest, Tour

if TYPE_CHECKING:
    from mstar.worker.core import WorkerCore
    from mstar.worker.order import Waiter


@dataclass(frozen=True, slots=True)
class Leaving:
    """A state on its way out: whose it is, and the message that waits for what is in it."""

    guest: Guest
    attempt: int
    state: StateRef
    to: m.Peer
    message: Callable[[m.Value], m.Message]
    since: float


# ---------------------------------------------------------------- beginning
def begin(core: WorkerCore, start: m.Start) -> None:
    """The conductor has announced a walk."""
    hit("worker.begin")
    guest = core.guests.get(start.rid)
    if guest is None:
        guest = core.guests[start.rid] = Guest(start.rid, start.attempt, core.tally.spans(start.rid))
    elif start.attempt < guest.attempt:
        core.late += 1
        return
    elif guest.tour is not None:
        drop_tour(core, guest)
    guest.attempt = start.attempt
    tour = guest.tour = Tour(core, guest, start, core.plans[start.model].walks[start.name], core.next())
    tour.begin_clock(core.tally.now)
    unreadable = [given.value.it for given in start.inputs.values() if isinstance(given, m.Given)]
    for value in unreadable:
        if isinstance(value, Unreadable):
            lose(core, tour, value.text)
            return
    for message in core.early.take((start.rid, start.attempt, start.walk)):
        hear(core, tour, message)
    go(core, tour)


def go(core: WorkerCore, tour: Tour) -> None:
    """Start the runs of a tour, once all that it begins with is here."""
    hit("worker.go")
    if tour.is_over or tour.is_started or not tour.is_complete:
        return
    tour.is_started = True
    seats = [seat for seat, peer in enumerate(tour.start.seats) if peer == core.me]
    tour.runs = {seat: Run(tour.plan.parts[seat], tour, core.ready) for seat in seats}
    early, tour.early = tour.early, []
    try:
        for run in list(tour.runs.values()):
            run.start(tour.arguments(run))
        for notes in early:
            deliver(tour, notes)
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, tour, error)
        return
    follow(core, tour)


def hear(core: WorkerCore, tour: Tour, message: m.Notes | m.StateInput) -> None:
    """Another worker has something for a tour."""
    hit("worker.hear")
    if tour.is_over:
        return
    if isinstance(message, m.Notes):
        for kind, due in message.due_in.items():
            tour.players[kind] = Playing(core.tally.now + due, is_begun=True)
    payloads = [message.payload] if isinstance(message, m.StateInput) else _payloads(message)
    for payload in payloads:
        if isinstance(payload.it, Unreadable):
            lose(core, tour, payload.it.text)
            return
        if isinstance(payload.it, Cargo):
            payload.it = core.load(tour, payload.it)
    if isinstance(message, m.StateInput):
        tour.inputs[message.input] = message.payload.it
        go(core, tour)
    elif not tour.is_started:
        tour.early.append(message)
    else:
        try:
            deliver(tour, message)
        except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
            fail(core, tour, error)
            return
        follow(core, tour)


def _payloads(notes: m.Notes) -> list[m.Value]:
    return [note.payload for note in notes.notes if isinstance(note, m.Passed | m.Item)]


def deliver(tour: Tour, notes: m.Notes) -> None:
    """Hand a seat what others told it. One that has come to its end needs nothing more."""
    hit("worker.deliver")
    run = tour.runs.get(notes.seat)
    for note in notes.notes if run is not None else ():
        assert run is not None
        run.deliver(_as_wire(notes.seat, note))


def _as_wire(seat: int, note: m.Note) -> wires.Message:
    match note:
        case m.Passed():
            return wires.ValueSent(seat, note.value, note.path, note.payload.it)
        case m.Item():
            return wires.ItemSent(seat, note.reader, note.path, note.payload.it)
        case m.Closed():
            return wires.Closed(seat, note.reader, note.path)
        case m.LetGo():
            return wires.Released(seat, note.stream, note.path, note.reader, note.count)


def _as_note(message: wires.Message) -> m.Note:
    match message:
        case wires.ValueSent():
            return m.Passed(message.value, message.path, m.Value(message.payload))
        case wires.ItemSent():
            return m.Item(message.reader, message.path, m.Value(message.payload))
        case wires.Closed():
            return m.Closed(message.reader, message.path)
        case wires.Released():
            return m.LetGo(message.stream, message.path, message.reader, message.count)


# ---------------------------------------------------------------- going on
def complete(core: WorkerCore, waiter: Waiter, values: tuple[Any, ...]) -> None:
    """A call has run."""
    hit("worker.complete")
    tour = waiter.tour
    try:
        complete_calls([(waiter.frame, waiter.instruction)], [values])
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, tour, error)
        return
    follow(core, tour)


def follow(core: WorkerCore, tour: Tour) -> None:
    """Pass on what the runs of a tour have to say, until they have nothing more."""
    hit("worker.follow")
    runs = tour.runs
    if not [run for run in runs.values() if run.outbox or run.emitted or run.is_done]:
        return
    notes: dict[int, m.Notes] = {}
    try:
        while saying := [run for run in runs.values() if run.outbox]:
            for run in saying:
                said, run.outbox = run.outbox, []
                for message in said:
                    _pass_on(core, tour, message, notes)
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, tour, error)
        return
    for seat, found in notes.items():
        found.due_in = tour.due_in(core.tally.now)
        core.out.append(Send(tour.start.seats[seat], found))
        core.tally.passed(tour, tour.start.seats[seat], core.tally.now)
    for seat, run in tuple(runs.items()):
        if run.emitted:
            emit(core, tour, run)
        if run.is_done:
            arrive(core, tour, seat, run)


def _pass_on(core: WorkerCore, tour: Tour, message: wires.Message, notes: dict[int, m.Notes]) -> None:
    start, seat = tour.start, message.seat
    if start.seats[seat] == core.me:
        run = tour.runs.get(seat)
        if run is not None:
            run.deliver(message)
    elif isinstance(message, wires.ValueSent) and isinstance(message.payload, StateRef):
        value, path = message.value, message.path

        def told(payload: m.Value) -> m.Message:
            return m.Notes(start.rid, start.attempt, start.walk, seat, [m.Passed(value, path, payload)])

        leave(core, Leaving(tour.guest, start.attempt, message.payload, start.seats[seat], told, core.tally.now))
    else:
        found = notes.setdefault(seat, m.Notes(start.rid, start.attempt, start.walk, seat, []))
        found.notes.append(_as_note(message))


def emit(core: WorkerCore, tour: Tour, run: Run) -> None:
    """Send the client what a run has made for it."""
    hit("worker.emit")
    start = tour.start
    for table, value in run.emitted:
        core.gauge.emitted(core.tally.now, tour, table, value)
        index = start.first.get(table.kind, 0) + tour.counts[table.kind]
        tour.counts[table.kind] += 1
        emission = m.Emit(start.rid, start.attempt, table.kind, index, m.Value(value), table.clock)
        core.out.append(Send(start.front, emission))
    run.emitted.clear()


def arrive(core: WorkerCore, tour: Tour, seat: int, run: Run) -> None:
    """A seat has come to its end: tell the conductor, and keep what the route gets."""
    hit("worker.arrive")
    guest, start = tour.guest, tour.start
    outputs: dict[int, m.Given | m.Held] = {}
    for index, value in run.outputs.items():
        if isinstance(value, StateRef):
            guest.kept[value.number] = value
            outputs[index] = m.Held(value.number)
        else:
            outputs[index] = m.Given(m.Value(value))
    states: dict[int, int] = {}
    for index, state in run.states.items():
        guest.kept[state.number] = state
        states[index] = state.number
    due_in = tour.due_in(core.tally.now)
    core.say(m.Done(start.rid, start.attempt, start.walk, seat, outputs, states, dict(tour.counts), due_in))
    run.drop()
    del tour.runs[seat]
    if not tour.runs:
        core.unpark()


# ---------------------------------------------------------------- states that move
def send_state(core: WorkerCore, guest: Guest, order: m.SendState) -> None:
    """A walk begins elsewhere with a state that the route holds here."""
    hit("worker.send_state")

    def told(payload: m.Value) -> m.Message:
        return m.StateInput(order.rid, order.attempt, order.walk, order.input, payload)

    leave(core, Leaving(guest, order.attempt, guest.kept[order.state], order.to, told, core.tally.now))


def leave(core: WorkerCore, leaving: Leaving) -> None:
    """Have a state made ready to go."""
    hit("worker.leave")
    ticket = core.next()
    core.exports[ticket] = leaving
    core.out.append(Export(leaving.state.number, ticket))


def depart(core: WorkerCore, exported: Exported) -> None:
    """A state is ready to go."""
    hit("worker.depart")
    leaving = core.exports.pop(exported.ticket)
    if core.guests.get(leaving.guest.rid) is not leaving.guest or leaving.guest.attempt > leaving.attempt:
        return
    if isinstance(exported.cargo, Exception):
        error = exported.cargo
        core.say(m.Failed(leaving.guest.rid, leaving.attempt, type(error).__name__, str(error)))
    else:
        core.out.append(Send(leaving.to, leaving.message(m.Value(exported.cargo))))
        if leaving.guest.tour is not None:
            core.tally.passed(leaving.guest.tour, leaving.to, leaving.since)


# ---------------------------------------------------------------- ending
def fail(core: WorkerCore, tour: Tour, error: Exception) -> None:
    """Something that a request asked for raised this."""
    core.say(m.Failed(tour.guest.rid, tour.start.attempt, type(error).__name__, str(error)))
    drop_tour(core, tour.guest)


def lose(core: WorkerCore, tour: Tour, text: str) -> None:
    """Something that a request needs could not be read."""
    core.say(m.Lost(tour.guest.rid, tour.start.attempt, text))
    drop_tour(core, tour.guest)


def drop_tour(core: WorkerCore, guest: Guest) -> None:
    """Forget what runs here of a request; what is being computed for it is dropped when it comes."""
    hit("worker.drop_tour")
    if guest.tour is not None and not guest.tour.is_over:
        core.waiting.drop(guest.tour)
        guest.tour.drop()
        core.unpark()


def drop(core: WorkerCore, guest: Guest) -> None:
    """Forget a request, the states of its route included."""
    drop_tour(core, guest)
    guest.kept.clear()
    core.early.drop(guest.rid, guest.attempt)
    del core.guests[guest.rid]
    core.tally.end(guest.rid)


def end(core: WorkerCore, order: m.End) -> None:
    """The conductor is done with an attempt."""
    hit("worker.end")
    guest = core.guests.get(order.rid)
    tour = None
    if guest is not None and guest.attempt <= order.attempt:
        tour = guest.tour
        if order.keeps_states:
            guest.attempt = order.attempt
            drop_tour(core, guest)
        else:
            drop(core, guest)
    core.early.drop(order.rid, order.attempt)
    if tour is not None and tour.in_flight:
        tour.releases.append(order.attempt)
    else:
        core.say(m.Released(order.rid, order.attempt))


def release(core: WorkerCore, tour: Tour) -> None:
    """Say that an attempt is over, once nothing of it is being computed."""
    hit("worker.release")
    if not tour.in_flight:
        for attempt in tour.releases:
            core.say(m.Released(tour.guest.rid, attempt))
        tour.releases.clear()
