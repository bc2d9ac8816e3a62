"""A request at a worker: the part of its walk that runs here, and the states it keeps here for its route.

Nothing here knows of other requests, of batches or of messages; see `core`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from math import inf
from typing import TYPE_CHECKING, Any

from mstar.plan.runtime.run import PartitionRun
from mstar.wire.messages import DataBatch, IncomingState, LocalState, Peer, StartWalk, ValueInput
from mstar.wire.slo import PlaybackClock, has_deadline
from mstar.wire.stats import Span, WalkStats

if TYPE_CHECKING:
    from mstar.plan.tables import Plan
    from mstar.worker.commands import StateRef
    from mstar.worker.core import WorkerCore


ISOLATED_CALLS = 4
"""So many calls of each op, up to the one that its conductor names, are run alone for a request under suspicion."""


class WorkerRequest:
    """One request at this worker."""

    __slots__ = ("attempt", "consumed", "rid", "route_states", "spans", "walk_run")

    def __init__(self, rid: str, attempt: int, spans: deque[Span]) -> None:
        self.rid = rid
        self.attempt = attempt
        self.spans = spans
        """What it did here, and when."""
        self.walk_run: WalkRun | None = None
        self.route_states: dict[int, StateRef] = {}
        """States that the route holds, by number."""
        self.consumed: dict[str, int] = {}
        """How many emissions of each kind the client has taken, of all walks."""


class WalkRun:
    """One walk of one request, as far as it runs at this worker. It is the host of its runs."""

    __slots__ = (
        "completed_calls",
        "early_messages",
        "emission_counts",
        "first_due",
        "has_deadlines",
        "in_flight",
        "is_over",
        "is_preempted",
        "is_started",
        "isolate_at_call",
        "number",
        "pending_releases",
        "plan",
        "playback_clocks",
        "request",
        "runs",
        "spans",
        "start",
        "state_inputs",
        "worker",
    )

    def __init__(self, worker: WorkerCore, request: WorkerRequest, start: StartWalk, plan: Plan, number: int) -> None:
        self.worker = worker
        self.request = request
        self.start = start
        self.plan = plan
        self.number = number
        """Tours that came earlier have lower ones."""
        self.runs: dict[int, PartitionRun] = {}
        """By seat; gone once that seat has come to its end."""
        self.state_inputs: dict[int, StateRef] = {}
        """States that other workers sent for its beginning."""
        self.early_messages: list[DataBatch] = []
        """What other workers told it before it began."""
        self.emission_counts: defaultdict[str, int] = defaultdict(int)
        """How many emissions of each kind it has made here."""
        self.completed_calls: defaultdict[int, int] = defaultdict(int)
        """How many calls of each batch key it has completed."""
        self.spans: dict[int | Peer, tuple[Span, WalkStats]] = {}
        """What it did here, by batch key; and what it sent, by to whom."""
        self.in_flight = 0
        """How many of its calls are being run."""
        self.pending_releases: list[int] = []
        """Attempts whose release the conductor waits for, until nothing of this is being run."""
        self.isolate_at_call = start.isolate_at_call
        self.playback_clocks: dict[str, PlaybackClock] = {}
        """What the client plays, by kind."""
        self.first_due = inf
        """When it should have the first of each kind that it has nothing of."""
        self.has_deadlines = not start.slo.best_effort
        """Whether anything of it can be due."""
        self.is_started = False
        self.is_over = False
        self.is_preempted = False
        """A state of it had to make room: it waits until somebody is done."""

    def is_suspect(self, key: int) -> bool:
        """Whether its next call with this batch key may be the one that killed a worker: about there it did."""
        return self.isolate_at_call - ISOLATED_CALLS <= self.completed_calls[key] < self.isolate_at_call

    def start_playback_clocks(self, now: float) -> None:
        """From now on it is known when things are due."""
        start = self.start
        self.first_due = now + start.first_due_in_s
        self.playback_clocks = {kind: PlaybackClock(now + due, is_started=True) for kind, due in start.due_in_s.items()}

    def next_due(self, kind: str) -> tuple[float, bool]:
        """When the next emission of a kind is due (of no kind: of any), and whether that has begun."""
        player = self.playback_clocks.get(kind)
        if player is not None:
            return player.due, player.is_started
        if not kind:
            begun = [player.due for player in self.playback_clocks.values()]
            if begun:
                return min(begun), True
        return (self.first_due if has_deadline(kind, self.start.slo) else inf), False

    def record_playback(self, now: float, kind: str, seconds: float | None) -> float | None:
        """An emission that plays for so long goes to the client; by how much it is late, unless it had it before."""
        index = self.start.emitted_counts.get(kind, 0) + self.emission_counts[kind]
        if index < self.request.consumed.get(kind, 0):
            return None  # from a worker that was lost
        player = self.playback_clocks.get(kind)
        if player is None:
            player = self.playback_clocks[kind] = PlaybackClock(self.first_due)
        return player.on_emission(now, seconds)

    def due_in(self, now: float) -> dict[str, float]:
        """In how many seconds the client will have nothing left, by kind that is made here."""
        return {kind: player.due - now for kind, player in self.playback_clocks.items() if kind in self.emission_counts}

    @property
    def has_all_inputs(self) -> bool:
        """Whether all that it begins with is here."""
        return all(i in self.state_inputs for i, given in self.start.inputs.items() if isinstance(given, IncomingState))

    def arguments(self, run: PartitionRun) -> list[Any]:
        """What a run begins with: a copy of each state, so that only what the plan brings back reaches the route's."""
        found: list[Any] = [None] * len(self.plan.input_names)
        for index, _ in run.program.inputs:
            given = self.start.inputs[index]
            if isinstance(given, ValueInput):
                found[index] = given.value.content
            elif isinstance(given, LocalState):
                found[index] = self.fork(self.request.route_states[given.state])
            elif isinstance(given, IncomingState):
                found[index] = self.fork(self.state_inputs[index])
            else:
                found[index] = self.new_state(given.component, given.kind)
        return found

    def is_backpressured(self, max_undelivered: int) -> bool:
        """Whether the client has not taken enough of what was sent."""
        first, taken = self.start.emitted_counts, self.request.consumed
        return any(
            first.get(kind, 0) + n - taken.get(kind, 0) >= max_undelivered for kind, n in self.emission_counts.items()
        )

    # ---------------------------------------------------------------- what a run asks of its host
    def new_state(self, component: str, kind: str) -> StateRef:
        """A fresh state."""
        return self.worker.new_state(self, component, kind)

    def fork(self, state: StateRef) -> StateRef:
        """A copy of a state."""
        return self.worker.fork(self, state)

    def drop(self) -> None:
        """Let go of everything."""
        self.is_over = True
        for run in self.runs.values():
            run.drop()
        self.runs.clear()
        self.state_inputs.clear()
        self.early_messages.clear()
