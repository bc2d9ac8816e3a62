"""Execution of walks at one worker: starts, advances, finishes, fails and drops walk runs.

The life of a walk run:

    start_walk -> (waits for input states) -> runs started -> on_result for each call -> all partitions finished
                                                           \\-> failed, retried or dropped

Every instruction of an author's program that needs no op executes here. An exception that it raises fails the attempt
of that request and nothing else. Which calls share a batch is decided by the scheduler.
"""

from __future__ import annotations

from mstar.engine.jobs import JobDone, JobFailed, Result
from mstar.failpoints import hit
from mstar.plan.runtime.frame import ReadyInstruction
from mstar.plan.runtime.messages import MessageKind, PartitionMessage
from mstar.plan.runtime.run import PartitionRun, complete_call
from mstar.wire import messages as m
from mstar.wire.failure import Failure, error_text
from mstar.wire.frame import UnreadableValue
from mstar.wire.slo import REALTIME_KINDS
from mstar.wire.stats import Span
from mstar.worker.commands import ExportedState, StateRef
from mstar.worker.lookaheads import Lookaheads
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.requests import PendingRelease, WalkRun, WorkerRequest
from mstar.worker.scheduling.cost_model import ModelBatchKey
from mstar.worker.scheduling.load_estimator import LoadEstimator
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.scheduler import Scheduler
from mstar.worker.walk_data import WalkDataSender, data_batch, payloads


class WalkExecution:
    """Drives the walk runs of all requests at this worker."""

    def __init__(
        self,
        requests: RequestTable,
        scheduler: Scheduler,
        load_estimator: LoadEstimator,
        lookaheads: Lookaheads,
        sender: WalkDataSender,
        outbox: Outbox,
    ) -> None:
        self._peer = requests.peer
        self._requests = requests
        self._scheduler = scheduler
        self._load_estimator = load_estimator
        self._lookaheads = lookaheads
        self._sender = sender
        self._outbox = outbox
        self._ready: list[ReadyInstruction] = []
        """Calls that became ready in this step; every partition run appends to it."""

    def take_ready(self) -> list[ReadyInstruction]:
        """Remove and return the calls that became ready."""
        ready = [*self._ready]
        self._ready.clear()
        return ready

    # ---------------------------------------------------------------- start
    def start_walk(self, now: float, start: m.StartWalk) -> None:
        """Start this worker's partitions of a walk, as soon as all inputs have arrived."""
        hit("worker.start_walk")
        request = self._requests.open(start.rid, start.attempt)
        if start.attempt < request.attempt:
            return
        if start.walk_index < 0:
            walk_run = self._requests.open_lookahead(request, start)
        else:
            self._drop_walk(request)
            previous = request.walk_run
            walk_run = self._requests.open_walk(request, start)
            walk_run.start_playback_clocks(now)
            self._load_estimator.on_walk_started(walk_run, previous)
        for source in start.inputs.values():
            if isinstance(source, m.ValueInput) and isinstance(source.value.content, UnreadableValue):
                self._abort(walk_run, _retry_needed(walk_run, source.value.content))
                return
        for message in self._requests.take_early(start):
            self._accept(now, walk_run, message)
        self._start_runs(now, walk_run)

    def receive(self, now: float, message: m.DataBatch | m.StateInput) -> None:
        """Process data from another worker."""
        walk_run = self._requests.find_walk(now, message)
        if walk_run is not None:
            self._accept(now, walk_run, message)

    def _accept(self, now: float, walk_run: WalkRun, message: m.DataBatch | m.StateInput) -> None:
        hit("worker.on_message")
        if walk_run.is_over:
            return
        if isinstance(message, m.DataBatch) and message.due_in_s:
            self._load_estimator.set_playback(now, walk_run, message.due_in_s)
        for payload in payloads(message):
            if isinstance(payload.content, UnreadableValue):
                self._abort(walk_run, _retry_needed(walk_run, payload.content))
                return
        if isinstance(message, m.StateInput):
            walk_run.state_inputs[message.input_index] = walk_run.load_state(message.payload.content)
            self._start_runs(now, walk_run)
        elif not walk_run.is_started:
            walk_run.early_messages.extend(walk_run.unwrap(message))
        else:
            try:
                walk_run.deliver(walk_run.unwrap(message))
            except Exception as error:  # noqa: BLE001 - the author's program failed for this request
                self._fail(walk_run, error)
                return
            self._flush_outputs(now, walk_run)

    def _start_runs(self, now: float, walk_run: WalkRun) -> None:
        hit("worker.start_runs")
        if walk_run.is_over or walk_run.is_started or not walk_run.has_all_inputs:
            return
        walk_run.is_started = True
        seats = [seat for seat, peer in enumerate(walk_run.start.seats) if peer == self._peer]
        walk_run.runs = {seat: PartitionRun(walk_run.plan.programs[seat], walk_run, self._ready) for seat in seats}
        early, walk_run.early_messages = walk_run.early_messages, []
        try:
            for run in list(walk_run.runs.values()):
                run.start(walk_run.arguments(run))
            walk_run.deliver(early)
        except Exception as error:  # noqa: BLE001 - the author's program failed for this request
            self._fail(walk_run, error)
            return
        self._flush_outputs(now, walk_run)

    # ---------------------------------------------------------------- advance
    def on_result(self, now: float, key: ModelBatchKey, call: ReadyCall, result: Result) -> None:
        """Continue a walk run with the result of one of its calls."""
        hit("worker.complete")
        walk_run = call.walk_run
        walk_run.in_flight -= 1
        if walk_run.is_over:
            self._confirm_release(walk_run)
            if walk_run.start.walk_index < 0:
                self._lookaheads.on_late_result(walk_run)
        elif isinstance(result, JobDone):
            call.job = None
            walk_run.completed_calls[key[1]] += 1
            if walk_run.lookahead is None:
                self._load_estimator.on_call(walk_run, key[1])
            try:
                complete_call(call.frame, call.instruction, result.values)
            except Exception as error:  # noqa: BLE001 - the author's program failed for this request
                self._fail(walk_run, error)
                return
            self._flush_outputs(now, walk_run)
        elif isinstance(result, JobFailed):
            self._fail(walk_run, result.error, walk_run.spans[key[1]][0])
        else:
            self._scheduler.requeue(key, call)
            self._send_ahead(walk_run, call)

    def _send_ahead(self, walk_run: WalkRun, call: ReadyCall) -> None:
        """Send what a chunk has added to states that move to other workers after the call."""
        start, slots, instruction = walk_run.start, call.frame.slots, call.instruction
        used = [slots[slot] for slot in instruction.args if isinstance(slots[slot], StateRef)]
        moves = [(state, walk_run.next_workers[state]) for state in used if state in walk_run.next_workers]
        moves += [(slots[send.slot], start.seats[send.seat]) for send in instruction.sends if slots[send.slot] in used]
        for state, to in moves:
            if to != self._peer:
                self._sender.send_ahead(walk_run.request, start.model, start.attempt, state, to)

    def _flush_outputs(self, now: float, walk_run: WalkRun) -> None:
        """Route messages between partitions until none is left, then send emissions and report finished partitions."""
        hit("worker.flush_outputs")
        has_messages, changed = False, list[tuple[int, PartitionRun]]()
        for seat, run in walk_run.runs.items():
            if run.outbox:
                has_messages = True
            if run.emissions or run.is_done:
                changed.append((seat, run))
        if has_messages:
            if not self._route_messages(walk_run):
                return
            changed = list(walk_run.runs.items())  # a message can have continued any of them
        for seat, run in changed:
            if run.emissions:
                self._emit(now, walk_run, run)
            if run.is_done:
                self._finish_partition(now, walk_run, seat, run)

    def _route_messages(self, walk_run: WalkRun) -> bool:
        """Route the messages of all partitions of a walk run. Returns False if that made it fail."""
        outgoing: dict[int, list[PartitionMessage]] = {}
        try:
            while pending := [run for run in walk_run.runs.values() if run.outbox]:
                for run in pending:
                    messages, run.outbox = run.outbox, []
                    for message in messages:
                        self._route(walk_run, message, outgoing)
        except Exception as error:  # noqa: BLE001 - the author's program failed for this request
            self._fail(walk_run, error)
            return False
        for seat, messages in outgoing.items():
            self._sender.send(walk_run, seat, messages)
        return True

    def _route(self, walk_run: WalkRun, message: PartitionMessage, outgoing: dict[int, list[PartitionMessage]]) -> None:
        """Deliver a message to a partition here, export the state it carries, or add it to `outgoing`."""
        start, seat = walk_run.start, message.seat
        if start.seats[seat] == self._peer:
            run = walk_run.runs.get(seat)
            if run is not None:
                run.deliver(message)
        elif message.kind is MessageKind.VALUE and isinstance(message.payload, StateRef):

            def state_value(exported: ExportedState) -> m.Message:
                return data_batch(start, [message.with_payload(exported)])

            self._sender.export_state(walk_run.request, start.attempt, message.payload, start.seats[seat], state_value)
        else:
            outgoing.setdefault(seat, []).append(message)

    def _emit(self, now: float, walk_run: WalkRun, run: PartitionRun) -> None:
        hit("worker.emit")
        start, counts = walk_run.start, walk_run.emission_counts
        for table, value in run.emissions:
            kind = table.kind
            if walk_run.has_text_deadlines or kind in REALTIME_KINDS:
                self._load_estimator.on_emission(now, walk_run, table, value)
            count = counts[kind]
            counts[kind] = count + 1
            index = start.emitted_counts.get(kind, 0) + count
            emission = m.Emit(start.rid, start.attempt, kind, index, m.Value(value), table.clock)
            self._outbox.send(start.frontend, emission)
        run.emissions.clear()

    def _finish_partition(self, now: float, walk_run: WalkRun, seat: int, run: PartitionRun) -> None:
        """Report the outputs of a partition to the conductor and keep the states that the route receives."""
        hit("worker.finish_seat")
        route_states, start = walk_run.request.route_states, walk_run.start
        outputs: dict[int, m.ValueInput | m.LocalState] = {}
        for index, value in run.outputs.items():
            if isinstance(value, StateRef):
                route_states[value.number] = value
                outputs[index] = m.LocalState(value.number)
            else:
                outputs[index] = m.ValueInput(m.Value(value))
        states: dict[int, int] = {}
        for index, state in run.states.items():
            route_states[state.number] = state
            states[index] = state.number
        counts, due_in_s = dict(walk_run.emission_counts), walk_run.due_in(now)
        self._outbox.send_to_conductor(
            m.SeatDone(start.rid, start.attempt, start.walk_index, seat, outputs, states, counts, due_in_s)
        )
        run.drop()
        del walk_run.runs[seat]
        if walk_run.lookahead is not None:
            walk_run.lookahead.kept_states += [*states.values(), *_state_numbers(outputs)]
        elif not walk_run.runs:
            self._requests.resume_preempted()
            if start.walk_index < 0:
                self._lookaheads.forget_finished(walk_run)

    # ---------------------------------------------------------------- end
    def release_attempt(self, release: m.ReleaseAttempt) -> None:
        """Release an attempt, and confirm it as soon as none of its calls is in flight."""
        hit("worker.release_attempt")
        request = self._requests.get(release.rid)
        busy: list[WalkRun] = []
        if request is not None and request.attempt <= release.attempt:
            if (walk_run := request.walk_run) is not None and walk_run.in_flight:
                busy.append(walk_run)
            if request.lookaheads:
                busy += [lookahead for lookahead in request.lookaheads.values() if lookahead.in_flight]
            if release.keep_states:
                request.attempt = release.attempt
                self._drop_walk(request)
                if request.lookaheads:
                    self._lookaheads.drop_all(request, "lost")
            else:
                self._drop_request(request, "dropped")
        self._requests.drop_early(release.rid, release.attempt)
        if busy:
            pending = PendingRelease(release.attempt, len(busy))
            for walk_run in busy:
                walk_run.pending_releases.append(pending)
        else:
            self._outbox.send_to_conductor(m.AttemptReleased(release.rid, release.attempt, release.can_wait))

    def drop_all(self) -> None:
        """Drop every request."""
        self._scheduler.drop(*self._requests.walk_runs())  # all at once: each one alone would look at all ready calls
        for request in list(self._requests):
            self._drop_request(request, "lost")

    def _confirm_release(self, walk_run: WalkRun) -> None:
        hit("worker.confirm_release")
        if not walk_run.in_flight:
            for pending in walk_run.pending_releases:
                pending.busy_runs -= 1
                if not pending.busy_runs:
                    self._outbox.send_to_conductor(m.AttemptReleased(walk_run.request.rid, pending.attempt))
            walk_run.pending_releases.clear()

    def _fail(self, walk_run: WalkRun, error: Exception, op_span: Span | None = None) -> None:
        """Fail the attempt of a walk run: an op, or the program between ops, raised an exception."""
        error_type = type(error).__name__
        failure = Failure.from_exception(
            error, walk=walk_run.start.walk_name, op=op_span.name if op_span is not None else ""
        )
        if op_span is not None:
            op_span.detail = failure.summary(error_type)
        rid, attempt = walk_run.request.rid, walk_run.start.attempt
        self._abort(walk_run, m.AttemptFailed(rid, attempt, error_type, error_text(error), failure))

    def _abort(self, walk_run: WalkRun, report: m.AttemptFailed | m.RetryNeeded) -> None:
        """Report to the conductor why a walk run cannot continue, and drop it."""
        if walk_run.start.walk_index < 0:
            self._lookaheads.abort(walk_run, report)
            return
        self._outbox.send_to_conductor(report)
        self._drop_walk(walk_run.request)

    def _drop_walk(self, request: WorkerRequest) -> None:
        """Drop the walk run of a request. Results of calls in flight are discarded when they arrive."""
        hit("worker.drop_walk")
        if request.walk_run is not None and not request.walk_run.is_over:
            if request.walk_run.runs:  # a walk that has finished here has no ready calls
                self._scheduler.drop(request.walk_run)
            request.walk_run.drop()
            self._requests.resume_preempted()

    def _drop_request(self, request: WorkerRequest, lookahead_outcome: str) -> None:
        self._drop_walk(request)
        if request.lookaheads:
            self._lookaheads.drop_all(request, lookahead_outcome)
        self._load_estimator.on_request_closed(request.walk_run)
        self._requests.close(request)


def _state_numbers(outputs: dict[int, m.ValueInput | m.LocalState]) -> list[int]:
    return [output.state for output in outputs.values() if isinstance(output, m.LocalState)]


def _retry_needed(walk_run: WalkRun, value: UnreadableValue) -> m.RetryNeeded:
    return m.RetryNeeded(walk_run.request.rid, walk_run.start.attempt, value.text)
