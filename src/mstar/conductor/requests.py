"""One request as its conductor knows it: its route, the walk that runs, what earlier ones gave, where its states are.

Nothing here sends anything; see `core`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.walk.model import RouteRun, WalkCall
from mstar.walk.said import Ears, Said
from mstar.walk.states import State
from mstar.wire.messages import Peer, Say, Submit

if TYPE_CHECKING:
    from mstar.plan.tables import Plan


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a state is: the worker that has it, and its number there."""

    peer: Peer
    number: int


class StateHandle(State):
    """What a route holds for a state. A fresh one is made where it is first used."""

    def __init__(self, request: Request, component: str, kind: str, kept: Kept | None = None) -> None:
        self.request = request
        self.component = component
        self.kind = kind
        self.kept = kept
        request.handles.append(self)

    def fork(self) -> StateHandle:
        """A handle for a copy of the state as it is now."""
        if self.kept is None:
            return StateHandle(self.request, self.component, self.kind)
        copy = Kept(self.kept.peer, self.request.new_number())
        self.request.forks.append((self.kept, copy))
        return StateHandle(self.request, self.component, self.kind, copy)


@dataclass(slots=True)
class Record:
    """What a walk that has ended gave."""

    name: str
    result: Any
    counts: dict[str, int]
    is_pure: bool
    """It neither took nor gave a state: what it gave holds whatever happens to workers."""


@dataclass(eq=False, slots=True)
class Tour:
    """The walk that runs, and who runs it."""

    call: WalkCall[Any, Any]
    plan: Plan
    number: int
    """How many walks of the request came before it."""
    seats: tuple[Peer, ...] = ()
    """Empty while it waits for a worker."""
    since: float = 0.0
    """When it began to wait."""
    left: set[int] = field(default_factory=set[int])
    """Seats that have not come to their end."""
    outputs: dict[int, Any] = field(default_factory=dict[int, Any])
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    moved: dict[int, Kept] = field(default_factory=dict[int, Kept])
    """Where the last version of each input state is."""

    @property
    def handles(self) -> dict[int, StateHandle]:
        """Its inputs that are states."""
        values = ((i, self.call.arguments[name]) for i, name in enumerate(self.plan.input_names))
        return {index: value for index, value in values if isinstance(value, StateHandle)}


class Request:
    """One request."""

    def __init__(self, submit: Submit, front: Peer, now: float) -> None:
        self.submit = submit
        self.rid = submit.rid
        self.front = front
        self.deadline = now + submit.patience
        self.came = now
        """When it was first heard of."""
        self.asked = now
        """When its client last said something: from then on it waits for the first of an answer."""
        self.due: dict[str, float] = {}
        """When the client will have nothing left, by kind, as far as walks that have ended told."""
        self.forecast = 0.0
        """How many seconds it was thought to take until the first emission, when it was taken on."""
        self.attempt = 0
        self.restarts = 0
        self.has_emitted = submit.after >= 0
        """Whether its client may have something of it."""
        self.edition: int | None = None
        """The edition of the weights that it began with; it is finished with the same."""
        self.route: RouteRun | None = None
        self.tour: Tour | None = None
        self.ears = Ears()
        self.is_waiting = False
        """Whether the route waits for what its client says."""
        self.walks = 0
        """How many walks the route has asked for in this attempt."""
        self.furthest = 0
        """The largest number of a walk that was begun, in any attempt."""
        self.records: list[Record] = []
        self.handles: list[StateHandle] = []
        self.forks: list[tuple[Kept, Kept]] = []
        """Copies that the route has asked for and nobody has been told of."""
        self.workers: set[Peer] = set()
        """Who holds something of this attempt."""
        self.deaths: dict[Peer, int] = {}
        """Workers that died while they computed for it, and how many of its calls they had completed."""
        self.careful = 0
        """About the so-manieth call of each op it is run alone: see `Start`."""
        self._numbers = 0

    def listen(self, say: Say) -> Said | None:
        """The client says something; None if that was known. When it was heard is kept, so that it is again."""
        if say.number != len(self.ears.said):
            return None
        walk = say.walk if say.walk >= 0 else max(self.walks, self.furthest)
        self.ears.said.append(Said(say.value.it, walk, say.counts))
        return self.ears.said[-1]

    def new_number(self) -> int:
        """A number for a state that the route has copied: below zero, so that it is nobody else's."""
        self._numbers -= 1
        return self._numbers

    @property
    def totals(self) -> dict[str, int]:
        """How many emissions of each kind its walks have made."""
        found: defaultdict[str, int] = defaultdict(int)
        for record in self.records[: self.walks]:
            for kind, count in record.counts.items():
                found[kind] += count
        return dict(found)

    def needs(self, peer: Peer) -> bool:
        """Whether it cannot go on without this worker."""
        is_there = self.tour is not None and peer in self.tour.seats
        return is_there or any(handle.kept is not None and handle.kept.peer == peer for handle in self.handles)
