"""One request as its conductor knows it: its route, the walk that runs, what earlier ones gave, where its states are.

Nothing here sends anything; see `core`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.walk.client_input import ClientInput, InputLog
from mstar.walk.model import RouteRun, WalkCall
from mstar.walk.states import State
from mstar.wire import messages as m
from mstar.wire.messages import Peer, Submit

if TYPE_CHECKING:
    from mstar.plan.tables import Plan


@dataclass(frozen=True, slots=True)
class StateLocation:
    """Where a state is: the worker that has it, and its number there."""

    peer: Peer
    number: int


class StateHandle(State):
    """What a route holds for a state. A fresh one is made where it is first used."""

    def __init__(self, request: Request, component: str, kind: str, location: StateLocation | None = None) -> None:
        self.request = request
        self.component = component
        self.kind = kind
        self.location = location
        request.handles.append(self)

    def fork(self) -> StateHandle:
        """A handle for a copy of the state as it is now."""
        if self.location is None:
            return StateHandle(self.request, self.component, self.kind)
        copy = StateLocation(self.location.peer, self.request.new_state_number())
        self.request.pending_forks.append((self.location, copy))
        return StateHandle(self.request, self.component, self.kind, copy)


@dataclass(slots=True)
class WalkResult:
    """What a walk that has ended gave."""

    name: str
    result: Any
    counts: dict[str, int]
    is_pure: bool
    """It neither took nor gave a state: what it gave holds whatever happens to workers."""


@dataclass(eq=False, slots=True)
class WalkRun:
    """The walk that runs, and who runs it."""

    call: WalkCall[Any, Any]
    plan: Plan
    number: int
    """How many walks of the request came before it."""
    seats: tuple[Peer, ...] = ()
    """Empty while it waits for a worker."""
    waiting_since: float = 0.0
    """When it began to wait."""
    pending_seats: set[int] = field(default_factory=set[int])
    """Seats that have not come to their end."""
    outputs: dict[int, Any] = field(default_factory=dict[int, Any])
    emission_counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    state_locations: dict[int, StateLocation] = field(default_factory=dict[int, StateLocation])
    """Where the last version of each input state is."""

    @property
    def handles(self) -> dict[int, StateHandle]:
        """Its inputs that are states."""
        values = ((i, self.call.arguments[name]) for i, name in enumerate(self.plan.input_names))
        return {index: value for index, value in values if isinstance(value, StateHandle)}


class Request:
    """One request."""

    def __init__(self, submit: Submit, frontend: Peer, now: float) -> None:
        self.submit = submit
        self.rid = submit.rid
        self.frontend = frontend
        self.deadline = now + submit.timeout_s
        self.submitted_at = now
        """When it was first heard of."""
        self.last_input_at = now
        """When its client last said something: from then on it waits for the first of an answer."""
        self.next_due: dict[str, float] = {}
        """When the client will have nothing left, by kind, as far as walks that have ended told."""
        self.predicted_ttft_s = 0.0
        """How many seconds it was thought to take until the first emission, when it was taken on."""
        self.attempt = 0
        self.retries = 0
        self.has_emitted = submit.last_seen_attempt >= 0
        """Whether its client may have something of it."""
        self.weights_version: int | None = None
        """The edition of the weights that it began with; it is finished with the same."""
        self.route: RouteRun | None = None
        self.walk_run: WalkRun | None = None
        self.inputs = InputLog()
        self.is_awaiting_input = False
        """Whether the route waits for what its client says."""
        self.walk_count = 0
        """How many walks the route has asked for in this attempt."""
        self.max_walk_started = 0
        """The largest number of a walk that was begun, in any attempt."""
        self.walk_results: list[WalkResult] = []
        self.handles: list[StateHandle] = []
        self.pending_forks: list[tuple[StateLocation, StateLocation]] = []
        """Copies that the route has asked for and nobody has been told of."""
        self.workers: set[Peer] = set()
        """Who holds something of this attempt."""
        self.worker_deaths: dict[Peer, int] = {}
        """Workers that died while they computed for it, and how many of its calls they had completed."""
        self.isolate_at_call = 0
        """About the so-manieth call of each op it is run alone: see `Start`."""
        self._last_state_number = 0

    def add_input(self, client_input: m.ClientInput) -> ClientInput | None:
        """The client says something; None if that was known. When it was heard is kept, so that it is again."""
        if client_input.index != len(self.inputs.inputs):
            return None
        walk = client_input.walk_index if client_input.walk_index >= 0 else max(self.walk_count, self.max_walk_started)
        self.inputs.inputs.append(ClientInput(client_input.value.content, walk, client_input.received_counts))
        return self.inputs.inputs[-1]

    def new_state_number(self) -> int:
        """A number for a state that the route has copied: below zero, so that it is nobody else's."""
        self._last_state_number -= 1
        return self._last_state_number

    @property
    def totals(self) -> dict[str, int]:
        """How many emissions of each kind its walks have made."""
        found: defaultdict[str, int] = defaultdict(int)
        for record in self.walk_results[: self.walk_count]:
            for kind, count in record.counts.items():
                found[kind] += count
        return dict(found)

    def needs(self, peer: Peer) -> bool:
        """Whether it cannot go on without this worker."""
        is_there = self.walk_run is not None and peer in self.walk_run.seats
        return is_there or any(handle.location is not None and handle.location.peer == peer for handle in self.handles)
