"""Requests at one worker: the states that a route keeps here, and the walk run of the current walk.

A request has at most one walk run at a time, beside its lookaheads. A walk run belongs to one attempt and holds a
`PartitionRun` for each partition of the walk that this worker executes. Nothing here knows about other requests,
batches or sending messages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mstar.failpoints import hit
from mstar.plan.runtime.messages import PartitionMessage
from mstar.plan.runtime.run import PartitionRun
from mstar.plan.tables import Plan
from mstar.wire.messages import DataBatch, IncomingState, LocalState, Peer, StartWalk, ValueInput
from mstar.wire.slo import PlaybackClock, has_deadline
from mstar.wire.stats import Span, WalkStats
from mstar.worker.commands import ExportedState, StateRef
from mstar.worker.state_table import StateTable

ISOLATED_CALLS = 4
"""Number of calls of each op, up to the call that the conductor names, that a crash suspect runs alone."""


class WorkerRequest:
    """One request at this worker."""

    __slots__ = (
        "attempt",
        "consumed",
        "is_dropped",
        "last_lookahead",
        "lookaheads",
        "rid",
        "route_states",
        "spans",
        "walk_run",
    )

    def __init__(self, rid: str, attempt: int, spans: deque[Span]) -> None:
        self.rid = rid
        self.attempt = attempt
        self.spans = spans
        """Trace spans of its ops and transfers at this worker."""
        self.is_dropped = False
        """Whether this worker has released the request; a later one with the same id is a new object."""
        self.walk_run: WalkRun | None = None
        self.lookaheads: dict[int, WalkRun] = {}
        """Lookaheads by walk index: those that are open, not finished, or have a call in flight."""
        self.last_lookahead: tuple[int, int] = (-1, 0)
        """Attempt and number of the lookahead that was started last. Messages for earlier ones are not early."""
        self.route_states: dict[int, StateRef] = {}
        """States that the route holds between walks, by number."""
        self.consumed: dict[str, int] = {}
        """Emissions of each kind that the client has consumed, over all walks."""

    def on_credit(self, kind: str, consumed: int) -> None:
        """Record the client's progress. Credits can arrive out of order, so the largest counts."""
        self.consumed[kind] = max(consumed, self.consumed.get(kind, 0))


@dataclass(slots=True)
class LookaheadRun:
    """The part of a walk run that only a lookahead has."""

    outcome: str = ""
    """How it has ended: committed, dropped or lost."""
    seconds: dict[int, float] = field(default_factory=dict[int, float])
    """Compute time by batch key that is not in the totals of the ops yet."""
    kept_states: list[int] = field(default_factory=list[int])
    """Numbers of the states that its request keeps in case the route commits it."""


@dataclass(slots=True)
class PendingRelease:
    """A released attempt, to be confirmed once no walk run has a call in flight."""

    attempt: int
    busy_runs: int


class WalkRun:
    """One walk of one request, as far as this worker executes it. It is the host of its partition runs."""

    __slots__ = (
        "completed_calls",
        "early_messages",
        "emission_counts",
        "first_due",
        "has_deadlines",
        "has_text_deadlines",
        "in_flight",
        "is_over",
        "is_preempted",
        "is_started",
        "isolate_at_call",
        "lookahead",
        "next_workers",
        "number",
        "pending_releases",
        "plan",
        "playback_clocks",
        "request",
        "runs",
        "spans",
        "start",
        "state_inputs",
        "states",
    )

    def __init__(self, states: StateTable, request: WorkerRequest, start: StartWalk, plan: Plan, number: int) -> None:
        self.states = states
        self.request = request
        self.start = start
        self.plan = plan
        self.number = number
        """Arrival order: walk runs that started earlier have lower numbers."""
        self.runs: dict[int, PartitionRun] = {}
        """Unfinished partition runs, by seat."""
        self.state_inputs: dict[int, StateRef] = {}
        """Input states that other workers sent, by input index."""
        self.early_messages: list[PartitionMessage] = []
        """Messages from other workers that arrived before the runs started."""
        self.emission_counts: defaultdict[str, int] = defaultdict(int)
        """Emissions of this walk run, by kind."""
        self.completed_calls: defaultdict[int, int] = defaultdict(int)
        """Completed calls, by batch key."""
        self.spans: dict[int | Peer, tuple[Span, WalkStats]] = {}
        """Open spans: of ops by batch key, of transfers by receiving peer."""
        self.in_flight = 0
        """Calls that are in a batch of the engine."""
        self.pending_releases: list[PendingRelease] = []
        """Released attempts that wait until no call is in flight."""
        self.lookahead = LookaheadRun() if start.walk_index < 0 else None
        """Set while it runs in idle time, because the route has not committed it."""
        self.isolate_at_call = start.isolate_at_call
        self.playback_clocks: dict[str, PlaybackClock] = {}
        """Playback position of the client, by kind of emission."""
        self.first_due = inf
        """Deadline of the first emission of every kind that has not started."""
        self.has_deadlines = not start.slo.best_effort
        self.has_text_deadlines = has_deadline("Text", start.slo)
        """Whether emissions that are not real-time have deadlines."""
        self.next_workers: dict[StateRef, Peer] = {}
        """Workers to which input states probably move after this walk."""
        self.is_started = self.is_over = self.is_preempted = False
        """Preempted: the engine evicted one of its states, and it waits until another walk run frees memory."""

    def is_suspect(self, key: int) -> bool:
        """Whether its next call with this batch key must run alone, because a worker crashed near that call."""
        return self.isolate_at_call - ISOLATED_CALLS <= self.completed_calls[key] < self.isolate_at_call

    # ---------------------------------------------------------------- deadlines and backpressure
    def start_playback_clocks(self, now: float) -> None:
        """Set the deadlines that the conductor sent, relative to now."""
        start = self.start
        self.first_due = now + start.first_due_in_s
        self.set_playback(now, start.due_in_s)

    def set_playback(self, now: float, due_in_s: dict[str, float]) -> None:
        """Set when the client runs out of output of each kind, in seconds from now."""
        for kind, due in due_in_s.items():
            self.playback_clocks[kind] = PlaybackClock(now + due, is_started=True)

    def next_due(self, kind: str) -> tuple[float, bool]:
        """Deadline of the next emission of a kind ("" for any), and whether the client has started that kind."""
        clock = self.playback_clocks.get(kind)
        if clock is not None:
            return clock.due, clock.is_started
        if not kind:
            started = [clock.due for clock in self.playback_clocks.values()]
            if started:
                return min(started), True
        return (self.first_due if has_deadline(kind, self.start.slo) else inf), False

    def record_playback(self, now: float, kind: str, seconds: float | None) -> float | None:
        """Record an emission that plays for `seconds`. Returns its lateness, or None if the client already had it."""
        index = self.start.emitted_counts.get(kind, 0) + self.emission_counts[kind]
        if index < self.request.consumed.get(kind, 0):
            return None  # replayed after the loss of a worker
        clock = self.playback_clocks.get(kind)
        if clock is None:
            clock = self.playback_clocks[kind] = PlaybackClock(self.first_due)
        return clock.on_emission(now, seconds)

    def due_in(self, now: float) -> dict[str, float]:
        """Seconds until the client runs out, for each kind that this worker emits."""
        return {kind: clock.due - now for kind, clock in self.playback_clocks.items() if kind in self.emission_counts}

    def is_backpressured(self, max_undelivered: int) -> bool:
        """Whether the client has too many unconsumed emissions of some kind."""
        earlier, consumed = self.start.emitted_counts, self.request.consumed
        # A plain loop: a generator would take three times as long, and every choice of a batch checks all ready calls.
        for kind, count in self.emission_counts.items():
            emitted = count + earlier.get(kind, 0) if earlier else count
            if emitted >= max_undelivered and emitted - consumed.get(kind, 0) >= max_undelivered:
                return True
        return False

    # ---------------------------------------------------------------- inputs and messages
    @property
    def has_all_inputs(self) -> bool:
        """Whether every input state from another worker has arrived."""
        inputs = self.start.inputs.items()
        return all(index in self.state_inputs for index, source in inputs if isinstance(source, IncomingState))

    def arguments(self, run: PartitionRun) -> list[Any]:
        """Inputs of a partition run. States are forked, so that only the plan's outputs change the route's states."""
        inputs: list[Any] = [None] * len(self.plan.input_names)
        for index, _ in run.program.inputs:
            source = self.start.inputs[index]
            if isinstance(source, ValueInput):
                inputs[index] = source.value.content
            elif isinstance(source, LocalState):
                inputs[index] = self.fork(self.request.route_states[source.state])
            elif isinstance(source, IncomingState):
                inputs[index] = self.fork(self.state_inputs[index])
            else:
                inputs[index] = self.new_state(source.component, source.kind)
            if index in self.start.next_workers:
                self.next_workers[inputs[index]] = self.start.next_workers[index]
        return inputs

    def unwrap(self, batch: DataBatch) -> list[PartitionMessage]:
        """Partition messages with their plain payloads. Exported states become states of this worker."""
        messages: list[PartitionMessage] = []
        for event in batch.events:
            if event.has_payload:
                content = event.payload.content
                if isinstance(content, ExportedState):
                    content = self.load_state(content)
                messages.append(event.with_payload(content))
            else:
                messages.append(event)
        return messages

    def deliver(self, messages: list[PartitionMessage]) -> None:
        """Deliver messages to their partition runs. A run that has finished needs no further message."""
        hit("worker.deliver")
        for message in messages:
            run = self.runs.get(message.seat)
            if run is not None:
                run.deliver(message)

    # ---------------------------------------------------------------- host of the partition runs
    def new_state(self, component: str, kind: str) -> StateRef:
        """Create a state of a component."""
        return self.states.create(self, self.start.model, component, kind, self.start.tenant)

    def fork(self, state: StateRef) -> StateRef:
        """Fork a state: an independent copy."""
        return self.states.fork(self, state)

    def load_state(self, exported: ExportedState) -> StateRef:
        """Create a state from the export of another worker."""
        return self.states.load(self, self.start.model, exported, self.start.tenant)

    def drop(self) -> None:
        """End the walk run and drop every reference to values and states."""
        self.is_over = True
        for run in self.runs.values():
            run.drop()
        self.runs.clear()
        self.state_inputs.clear()
        self.next_workers.clear()
        self.early_messages.clear()
