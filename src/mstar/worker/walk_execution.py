"""How a walk begins, goes on and ends at a worker.

Every step of an author's program that needs no op happens in here, and whatever it raises ends its request: nothing
leaves this module but what is put into the core's lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstar.failpoints import hit
from mstar.plan.runtime import messages
from mstar.plan.runtime.run import PartitionRun
from mstar.plan.runtime.run import complete as complete_calls
from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue
from mstar.wire.slo import PlaybackClock
from mstar.worker.commands import Export, ExportedState, ExportFinished, SendMessage, StateRef
from mstar.worker.requests import WalkRun, WorkerRequest

if TYPE_CHECKING:
    from mstar.worker.core import WorkerCore
    from mstar.worker.scheduling.policy import ReadyCall


@dataclass(frozen=True, slots=True)
class PendingExport:
    """A state on its way out: whose it is, and the message that waits for what is in it."""

    request: WorkerRequest
    attempt: int
    state: StateRef
    to: m.Peer
    make_message: Callable[[m.Value], m.Message]
    since: float


# ---------------------------------------------------------------- beginning
def start_walk(core: WorkerCore, start: m.StartWalk) -> None:
    """The conductor has announced a walk."""
    hit("worker.start_walk")
    guest = core.requests.get(start.rid)
    if guest is None:
        guest = core.requests[start.rid] = WorkerRequest(start.rid, start.attempt, core.op_stats.spans(start.rid))
    elif start.attempt < guest.attempt:
        core.stale_messages += 1
        return
    elif guest.walk_run is not None:
        drop_walk(core, guest)
    guest.attempt = start.attempt
    tour = guest.walk_run = WalkRun(
        core, guest, start, core.plans[start.model].walks[start.walk_name], core.next_number()
    )
    tour.start_playback_clocks(core.op_stats.now)
    unreadable = [given.value.content for given in start.inputs.values() if isinstance(given, m.ValueInput)]
    for value in unreadable:
        if isinstance(value, UnreadableValue):
            request_retry(core, tour, value.text)
            return
    for message in core.early_messages.take((start.rid, start.attempt, start.walk_index)):
        on_message(core, tour, message)
    start_runs(core, tour)


def start_runs(core: WorkerCore, walk_run: WalkRun) -> None:
    """Start the runs of a tour, once all that it begins with is here."""
    hit("worker.start_runs")
    if walk_run.is_over or walk_run.is_started or not walk_run.has_all_inputs:
        return
    walk_run.is_started = True
    seats = [seat for seat, peer in enumerate(walk_run.start.seats) if peer == core.peer]
    walk_run.runs = {seat: PartitionRun(walk_run.plan.programs[seat], walk_run, core.ready) for seat in seats}
    early, walk_run.early_messages = walk_run.early_messages, []
    try:
        for run in list(walk_run.runs.values()):
            run.start(walk_run.arguments(run))
        for notes in early:
            deliver(walk_run, notes)
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, walk_run, error)
        return
    flush_outputs(core, walk_run)


def on_message(core: WorkerCore, walk_run: WalkRun, message: m.DataBatch | m.StateInput) -> None:
    """Another worker has something for a tour."""
    hit("worker.on_message")
    if walk_run.is_over:
        return
    if isinstance(message, m.DataBatch):
        for kind, due in message.due_in_s.items():
            walk_run.playback_clocks[kind] = PlaybackClock(core.op_stats.now + due, is_started=True)
    payloads = [message.payload] if isinstance(message, m.StateInput) else _payloads(message)
    for payload in payloads:
        if isinstance(payload.content, UnreadableValue):
            request_retry(core, walk_run, payload.content.text)
            return
        if isinstance(payload.content, ExportedState):
            payload.content = core.load_state(walk_run, payload.content)
    if isinstance(message, m.StateInput):
        walk_run.state_inputs[message.input_index] = message.payload.content
        start_runs(core, walk_run)
    elif not walk_run.is_started:
        walk_run.early_messages.append(message)
    else:
        try:
            deliver(walk_run, message)
        except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
            fail(core, walk_run, error)
            return
        flush_outputs(core, walk_run)


def _payloads(notes: m.DataBatch) -> list[m.Value]:
    return [note.payload for note in notes.events if isinstance(note, m.ValueSent | m.StreamItem)]


def deliver(walk_run: WalkRun, batch: m.DataBatch) -> None:
    """Hand a seat what others told it. One that has come to its end needs nothing more."""
    hit("worker.deliver")
    run = walk_run.runs.get(batch.seat)
    for note in batch.events if run is not None else ():
        assert run is not None
        run.deliver(_from_wire(batch.seat, note))


def _from_wire(seat: int, note: m.SeatEvent) -> messages.SeatMessage:
    match note:
        case m.ValueSent():
            return messages.ValueSent(seat, note.value, note.path, note.payload.content)
        case m.StreamItem():
            return messages.StreamItem(seat, note.reader, note.path, note.payload.content)
        case m.StreamClosed():
            return messages.StreamClosed(seat, note.reader, note.path)
        case m.StreamConsumed():
            return messages.StreamConsumed(seat, note.stream, note.path, note.reader, note.count)


def _to_wire(message: messages.SeatMessage) -> m.SeatEvent:
    match message:
        case messages.ValueSent():
            return m.ValueSent(message.value, message.path, m.Value(message.payload))
        case messages.StreamItem():
            return m.StreamItem(message.reader, message.path, m.Value(message.payload))
        case messages.StreamClosed():
            return m.StreamClosed(message.reader, message.path)
        case messages.StreamConsumed():
            return m.StreamConsumed(message.stream, message.path, message.reader, message.count)


# ---------------------------------------------------------------- going on
def complete(core: WorkerCore, ready_call: ReadyCall, values: tuple[Any, ...]) -> None:
    """A call has run."""
    hit("worker.complete")
    tour = ready_call.walk_run
    try:
        complete_calls([(ready_call.frame, ready_call.instruction)], [values])
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, tour, error)
        return
    flush_outputs(core, tour)


def flush_outputs(core: WorkerCore, walk_run: WalkRun) -> None:
    """Pass on what the runs of a tour have to say, until they have nothing more."""
    hit("worker.flush_outputs")
    runs = walk_run.runs
    if not [run for run in runs.values() if run.outbox or run.emissions or run.is_done]:
        return
    notes: dict[int, m.DataBatch] = {}
    try:
        while saying := [run for run in runs.values() if run.outbox]:
            for run in saying:
                said, run.outbox = run.outbox, []
                for message in said:
                    _forward(core, walk_run, message, notes)
    except Exception as error:  # noqa: BLE001 - an author's program failed, for this request
        fail(core, walk_run, error)
        return
    for seat, found in notes.items():
        found.due_in_s = walk_run.due_in(core.op_stats.now)
        core.actions.append(SendMessage(walk_run.start.seats[seat], found))
        core.op_stats.on_transfer(walk_run, walk_run.start.seats[seat], core.op_stats.now)
    for seat, run in tuple(runs.items()):
        if run.emissions:
            emit(core, walk_run, run)
        if run.is_done:
            finish_seat(core, walk_run, seat, run)


def _forward(core: WorkerCore, walk_run: WalkRun, message: messages.SeatMessage, notes: dict[int, m.DataBatch]) -> None:
    start, seat = walk_run.start, message.seat
    if start.seats[seat] == core.peer:
        run = walk_run.runs.get(seat)
        if run is not None:
            run.deliver(message)
    elif isinstance(message, messages.ValueSent) and isinstance(message.payload, StateRef):
        value, path = message.value, message.path

        def told(payload: m.Value) -> m.Message:
            return m.DataBatch(start.rid, start.attempt, start.walk_index, seat, [m.ValueSent(value, path, payload)])

        start_export(
            core,
            PendingExport(walk_run.request, start.attempt, message.payload, start.seats[seat], told, core.op_stats.now),
        )
    else:
        found = notes.setdefault(seat, m.DataBatch(start.rid, start.attempt, start.walk_index, seat, []))
        found.events.append(_to_wire(message))


def emit(core: WorkerCore, walk_run: WalkRun, run: PartitionRun) -> None:
    """Send the client what a run has made for it."""
    hit("worker.emit")
    start = walk_run.start
    for table, value in run.emissions:
        core.load_estimator.on_emission(core.op_stats.now, walk_run, table, value)
        index = start.emitted_counts.get(table.kind, 0) + walk_run.emission_counts[table.kind]
        walk_run.emission_counts[table.kind] += 1
        emission = m.Emit(start.rid, start.attempt, table.kind, index, m.Value(value), table.clock)
        core.actions.append(SendMessage(start.frontend, emission))
    run.emissions.clear()


def finish_seat(core: WorkerCore, walk_run: WalkRun, seat: int, run: PartitionRun) -> None:
    """A seat has come to its end: tell the conductor, and keep what the route gets."""
    hit("worker.finish_seat")
    guest, start = walk_run.request, walk_run.start
    outputs: dict[int, m.ValueInput | m.LocalState] = {}
    for index, value in run.outputs.items():
        if isinstance(value, StateRef):
            guest.route_states[value.number] = value
            outputs[index] = m.LocalState(value.number)
        else:
            outputs[index] = m.ValueInput(m.Value(value))
    states: dict[int, int] = {}
    for index, state in run.states.items():
        guest.route_states[state.number] = state
        states[index] = state.number
    due_in = walk_run.due_in(core.op_stats.now)
    core.send_to_conductor(
        m.SeatDone(
            start.rid, start.attempt, start.walk_index, seat, outputs, states, dict(walk_run.emission_counts), due_in
        )
    )
    run.drop()
    del walk_run.runs[seat]
    if not walk_run.runs:
        core.resume_preempted()


# ---------------------------------------------------------------- states that move
def send_state(core: WorkerCore, request: WorkerRequest, command: m.SendState) -> None:
    """A walk begins elsewhere with a state that the route holds here."""
    hit("worker.send_state")

    def told(payload: m.Value) -> m.Message:
        return m.StateInput(command.rid, command.attempt, command.walk_index, command.input_index, payload)

    start_export(
        core,
        PendingExport(
            request, command.attempt, request.route_states[command.state], command.to, told, core.op_stats.now
        ),
    )


def start_export(core: WorkerCore, export: PendingExport) -> None:
    """Have a state made ready to go."""
    hit("worker.start_export")
    ticket = core.next_number()
    core.pending_exports[ticket] = export
    core.actions.append(Export(export.state.number, ticket))


def finish_export(core: WorkerCore, exported: ExportFinished) -> None:
    """A state is ready to go."""
    hit("worker.finish_export")
    leaving = core.pending_exports.pop(exported.ticket)
    if core.requests.get(leaving.request.rid) is not leaving.request or leaving.request.attempt > leaving.attempt:
        return
    if isinstance(exported.result, Exception):
        error = exported.result
        core.send_to_conductor(m.AttemptFailed(leaving.request.rid, leaving.attempt, type(error).__name__, str(error)))
    else:
        core.actions.append(SendMessage(leaving.to, leaving.make_message(m.Value(exported.result))))
        if leaving.request.walk_run is not None:
            core.op_stats.on_transfer(leaving.request.walk_run, leaving.to, leaving.since)


# ---------------------------------------------------------------- ending
def fail(core: WorkerCore, walk_run: WalkRun, error: Exception) -> None:
    """Something that a request asked for raised this."""
    core.send_to_conductor(
        m.AttemptFailed(walk_run.request.rid, walk_run.start.attempt, type(error).__name__, str(error))
    )
    drop_walk(core, walk_run.request)


def request_retry(core: WorkerCore, walk_run: WalkRun, text: str) -> None:
    """Something that a request needs could not be read."""
    core.send_to_conductor(m.RetryNeeded(walk_run.request.rid, walk_run.start.attempt, text))
    drop_walk(core, walk_run.request)


def drop_walk(core: WorkerCore, request: WorkerRequest) -> None:
    """Forget what runs here of a request; what is being computed for it is dropped when it comes."""
    hit("worker.drop_walk")
    if request.walk_run is not None and not request.walk_run.is_over:
        core.scheduler.drop(request.walk_run)
        request.walk_run.drop()
        core.resume_preempted()


def drop_request(core: WorkerCore, request: WorkerRequest) -> None:
    """Forget a request, the states of its route included."""
    drop_walk(core, request)
    request.route_states.clear()
    core.early_messages.drop(request.rid, request.attempt)
    del core.requests[request.rid]
    core.op_stats.finish(request.rid)


def release_attempt(core: WorkerCore, order: m.ReleaseAttempt) -> None:
    """The conductor is done with an attempt."""
    hit("worker.release_attempt")
    guest = core.requests.get(order.rid)
    tour = None
    if guest is not None and guest.attempt <= order.attempt:
        tour = guest.walk_run
        if order.keep_states:
            guest.attempt = order.attempt
            drop_walk(core, guest)
        else:
            drop_request(core, guest)
    core.early_messages.drop(order.rid, order.attempt)
    if tour is not None and tour.in_flight:
        tour.pending_releases.append(order.attempt)
    else:
        core.send_to_conductor(m.AttemptReleased(order.rid, order.attempt))


def confirm_release(core: WorkerCore, walk_run: WalkRun) -> None:
    """Say that an attempt is over, once nothing of it is being computed."""
    hit("worker.confirm_release")
    if not walk_run.in_flight:
        for attempt in walk_run.pending_releases:
            core.send_to_conductor(m.AttemptReleased(walk_run.request.rid, attempt))
        walk_run.pending_releases.clear()
