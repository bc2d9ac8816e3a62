"""State of one request at the conductor: its route, its walk in execution, finished walks and state locations.

Data and small queries only. Transitions are in `request_lifecycle`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mstar.conductor.model import ConductorModel
from mstar.conductor.recovery.crash_history import CrashHistory
from mstar.conductor.request_states import RequestStates, StateHandle, StateLocation
from mstar.plan.tables import Plan
from mstar.walk.client_input import INTERRUPTED, ClientInput, InputLog, emission_totals_after
from mstar.walk.model import RouteRun, WalkCall
from mstar.wire import messages as m
from mstar.wire.failure import NO_FAILURE, Failure, error_text
from mstar.wire.frame import UnreadableValue
from mstar.wire.messages import Peer, Submit


def is_resubmitted(submit: Submit) -> bool:
    """Return whether an earlier conductor admitted this request: the client can already have output of it."""
    return submit.last_seen_attempt >= 0


@dataclass(frozen=True, slots=True)
class FinishStatus:
    """Final status of a request."""

    status: str
    error: str = ""
    text: str = ""
    result: Any = None
    failure: Failure = NO_FAILURE

    @classmethod
    def from_exception(cls, error: Exception) -> FinishStatus:
        """The route raised an exception."""
        failure = Failure.from_exception(error, process="conductor")
        return cls("failed", type(error).__name__, error_text(error), failure=failure)

    @classmethod
    def not_retryable(cls, cause: str, walk: str) -> FinishStatus:
        """A retry would repeat a walk that is not idempotent."""
        return cls("not_retryable", "NotRetryable", f"{cause}, and walk `{walk}` is not idempotent")

    @classmethod
    def from_report(cls, worker: Peer, report: m.AttemptFailed) -> FinishStatus:
        """A worker reports that an op or a walk raised an exception."""
        failure = msgspec.structs.replace(report.failure, process=worker.name)
        return cls("failed", report.error_type, report.error_message, failure=failure)


@dataclass(slots=True)
class WalkResult:
    """Result of a finished walk."""

    name: str
    result: Any
    """None if it is not pure."""
    counts: dict[str, int]
    """Emissions by kind."""
    is_pure: bool
    """Whether it neither took nor gave a state. A pure result stays valid when workers die."""


@dataclass(eq=False, slots=True)
class WalkRun:
    """One walk of one request in execution."""

    call: WalkCall[Any, Any]
    plan: Plan
    number: int
    """Number of earlier walks of the request."""
    seats: tuple[Peer, ...] = ()
    """The worker of each seat; empty while the walk waits for workers."""
    waiting_since: float = 0.0
    """Time since which it waits for workers."""
    pending_seats: set[int] = field(default_factory=set[int])
    """Seats that have not reported `SeatDone`."""
    outputs: dict[int, Any] = field(default_factory=dict[int, Any])
    emission_counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    lookahead_index: int = 0
    """Index of the lookahead as which it was started; 0 if it was not."""
    state_locations: dict[int, StateLocation] = field(default_factory=dict[int, StateLocation])
    """By input index, where the last version of each input state is."""
    handles: dict[int, StateHandle] = field(init=False)
    """By input index, the inputs that are states."""
    walk_index: int = field(init=False)
    """Its number in messages; see `StartWalk`."""

    def __post_init__(self) -> None:
        self.walk_index = self.lookahead_index or self.number
        values = ((i, self.call.arguments[name]) for i, name in enumerate(self.plan.input_names))
        self.handles = {index: value for index, value in values if isinstance(value, StateHandle)}

    @property
    def is_waiting(self) -> bool:
        """Whether no workers are assigned yet."""
        return not self.seats

    def add_seat_result(self, peer: Peer, done: m.SeatDone) -> UnreadableValue | None:
        """Record what one seat returned. Return the first output that could not be decoded, if any."""
        self.pending_seats.discard(done.seat)
        for index, output in done.outputs.items():
            value = StateLocation(peer, output.state) if isinstance(output, m.LocalState) else output.value.content
            self.outputs[index] = value
            if isinstance(value, UnreadableValue):
                return value
        for index, number in done.states.items():
            self.state_locations[index] = StateLocation(peer, number)
        for kind, count in done.emission_counts.items():  # a worker with two seats reports the count of both twice
            self.emission_counts[kind] = max(self.emission_counts[kind], count)
        return None


class Request:
    """One request, from submission until it is finished."""

    def __init__(self, submit: Submit, model: ConductorModel, frontend: Peer, now: float) -> None:
        self.submit = submit
        self.rid = submit.rid
        self.model = model
        self.frontend = frontend
        self.deadline = now + submit.timeout_s
        self.submitted_at = now
        self.number = 0
        """Number of requests that its conductor accepted before."""
        self.last_input_at = now
        """Time of the client's last input. Time to first output counts from here."""
        self.next_due: dict[str, float] = {}
        """By kind, when the client's playback buffer runs empty, as reported by finished walks."""
        self.predicted_ttft_s = 0.0
        """Time to first output predicted at submission; 0 if unknown."""
        self.attempt = 0
        self.retries = 0
        self.has_emitted = is_resubmitted(submit)
        """Whether the client can have output of it."""
        self.weights_version: int | None = None
        """Version of the weights it started with. It finishes with the same version."""
        self.route: RouteRun | None = None
        """None while the request is queued."""
        self.walk_run: WalkRun | None = None
        self.lookaheads: dict[int, WalkRun] = {}
        """Open lookaheads of this attempt that were started on workers, by index."""
        self.last_lookahead = 0
        """Index of the last lookahead that its route has offered."""
        self.inputs = InputLog()
        self.is_awaiting_input = False
        """Whether the route waits for the client's next input."""
        self.walk_count = 0
        """Number of walks that the route has completed in this attempt."""
        self.max_walk_started = 0
        """Highest number of a walk started in any attempt."""
        self.walk_results: list[WalkResult] = []
        self.states = RequestStates()
        self.workers: set[Peer] = set()
        """Workers that hold something of this attempt."""
        self.crash_history = CrashHistory()

    def add_input(self, client_input: m.ClientInput) -> ClientInput | None:
        """Append an input to the log; return None if it is a duplicate or out of order.

        The walk it arrived in is recorded, so that a retry replays it at the same place.
        """
        if client_input.index != len(self.inputs.inputs):
            return None
        walk = client_input.walk_index if client_input.walk_index >= 0 else max(self.walk_count, self.max_walk_started)
        self.inputs.inputs.append(ClientInput(client_input.value.content, walk, client_input.received_counts))
        return self.inputs.inputs[-1]

    def consume_input(self) -> Any:
        """Return the client's next input for the route; the end of inputs if there is none."""
        self.is_awaiting_input = False
        return self.inputs.consume()

    def record_interrupted(self, name: str, interruption: ClientInput) -> None:
        """Record the current walk as interrupted. The record is pure: it stays valid when workers die."""
        before = self.totals
        after = emission_totals_after(before, interruption)
        counts = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        self.walk_results[self.walk_count :] = [WalkResult(name, INTERRUPTED, counts, is_pure=True)]

    def drop_references(self) -> None:
        """Drop the route and the walks of a finished request.

        They refer back to the request. Without these cycles reference counting frees the request and its body at once;
        the garbage collector runs too seldom for bodies of megabytes.
        """
        self.route = None
        self.walk_run = None
        self.lookaheads.clear()
        self.walk_results.clear()

    @property
    def totals(self) -> dict[str, int]:
        """Emissions by kind of the walks completed in this attempt."""
        totals: defaultdict[str, int] = defaultdict(int)
        for walk_result in self.walk_results[: self.walk_count]:
            for kind, count in walk_result.counts.items():
                totals[kind] += count
        return dict(totals)

    @property
    def is_retryable(self) -> bool:
        """Whether no walk that a restart would repeat is non-idempotent."""
        repeated = [walk_result.name for walk_result in self.walk_results if not walk_result.is_pure]
        if self.walk_run is not None and not self.walk_run.is_waiting:
            repeated.append(self.walk_run.call.name)
        return self.model.non_idempotent_walks.isdisjoint(repeated)

    def needs(self, peer: Peer) -> bool:
        """Return whether it runs on this worker or has a state there."""
        is_running_there = self.walk_run is not None and peer in self.walk_run.seats
        return is_running_there or any(location.peer == peer for location in self.states.locations())
