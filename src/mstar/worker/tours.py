"""A request at a worker: the part of its walk that runs here, and the states it keeps here for its route.

Nothing here knows of other requests, of batches or of messages; see `core`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from math import inf
from typing import TYPE_CHECKING, Any

from mstar.plan.run import Run
from mstar.wire.figures import Span, WalkCount
from mstar.wire.messages import Coming, Given, Held, Notes, Peer, Start
from mstar.wire.pace import Playing, is_due

if TYPE_CHECKING:
    from mstar.plan.tables import Plan
    from mstar.worker.commands import StateRef
    from mstar.worker.core import WorkerCore


ALONE = 4
"""So many calls of each op, up to the one that its conductor names, are run alone for a request under suspicion."""


class Guest:
    """One request at this worker."""

    __slots__ = ("attempt", "kept", "rid", "spans", "taken", "tour")

    def __init__(self, rid: str, attempt: int, spans: deque[Span]) -> None:
        self.rid = rid
        self.attempt = attempt
        self.spans = spans
        """What it did here, and when."""
        self.tour: Tour | None = None
        self.kept: dict[int, StateRef] = {}
        """States that the route holds, by number."""
        self.taken: dict[str, int] = {}
        """How many emissions of each kind the client has taken, of all walks."""


class Tour:
    """One walk of one request, as far as it runs at this worker. It is the host of its runs."""

    __slots__ = (
        "calls",
        "careful",
        "counts",
        "early",
        "first_due",
        "guest",
        "in_flight",
        "inputs",
        "is_clocked",
        "is_over",
        "is_parked",
        "is_started",
        "number",
        "plan",
        "players",
        "releases",
        "runs",
        "spans",
        "start",
        "worker",
    )

    def __init__(self, worker: WorkerCore, guest: Guest, start: Start, plan: Plan, number: int) -> None:
        self.worker = worker
        self.guest = guest
        self.start = start
        self.plan = plan
        self.number = number
        """Tours that came earlier have lower ones."""
        self.runs: dict[int, Run] = {}
        """By seat; gone once that seat has come to its end."""
        self.inputs: dict[int, StateRef] = {}
        """States that other workers sent for its beginning."""
        self.early: list[Notes] = []
        """What other workers told it before it began."""
        self.counts: defaultdict[str, int] = defaultdict(int)
        """How many emissions of each kind it has made here."""
        self.calls: defaultdict[int, int] = defaultdict(int)
        """How many calls of each batch key it has completed."""
        self.spans: dict[int | Peer, tuple[Span, WalkCount]] = {}
        """What it did here, by batch key; and what it sent, by to whom."""
        self.in_flight = 0
        """How many of its calls are being run."""
        self.releases: list[int] = []
        """Attempts whose release the conductor waits for, until nothing of this is being run."""
        self.careful = start.careful
        self.players: dict[str, Playing] = {}
        """What the client plays, by kind."""
        self.first_due = inf
        """When it should have the first of each kind that it has nothing of."""
        self.is_clocked = not start.pace.is_batch
        """Whether anything of it can be due."""
        self.is_started = False
        self.is_over = False
        self.is_parked = False
        """A state of it had to make room: it waits until somebody is done."""

    def is_suspect(self, key: int) -> bool:
        """Whether its next call with this batch key may be the one that killed a worker: about there it did."""
        return self.careful - ALONE <= self.calls[key] < self.careful

    def begin_clock(self, now: float) -> None:
        """From now on it is known when things are due."""
        start = self.start
        self.first_due = now + start.first_in
        self.players = {kind: Playing(now + due, is_begun=True) for kind, due in start.due_in.items()}

    def due(self, kind: str) -> tuple[float, bool]:
        """When the next emission of a kind is due (of no kind: of any), and whether that has begun."""
        player = self.players.get(kind)
        if player is not None:
            return player.due, player.is_begun
        if not kind:
            begun = [player.due for player in self.players.values()]
            if begun:
                return min(begun), True
        return (self.first_due if is_due(kind, self.start.pace) else inf), False

    def play(self, now: float, kind: str, seconds: float | None) -> float | None:
        """An emission that plays for so long goes to the client; by how much it is late, unless it had it before."""
        index = self.start.first.get(kind, 0) + self.counts[kind]
        if index < self.guest.taken.get(kind, 0):
            return None  # from a worker that was lost
        player = self.players.get(kind)
        if player is None:
            player = self.players[kind] = Playing(self.first_due)
        return player.take(now, seconds)

    def due_in(self, now: float) -> dict[str, float]:
        """In how many seconds the client will have nothing left, by kind that is made here."""
        return {kind: player.due - now for kind, player in self.players.items() if kind in self.counts}

    @property
    def is_complete(self) -> bool:
        """Whether all that it begins with is here."""
        return all(i in self.inputs for i, given in self.start.inputs.items() if isinstance(given, Coming))

    def arguments(self, run: Run) -> list[Any]:
        """What a run begins with: a copy of each state, so that only what the plan brings back reaches the route's."""
        found: list[Any] = [None] * len(self.plan.input_names)
        for index, _ in run.part.inputs:
            given = self.start.inputs[index]
            if isinstance(given, Given):
                found[index] = given.value.it
            elif isinstance(given, Held):
                found[index] = self.fork(self.guest.kept[given.state])
            elif isinstance(given, Coming):
                found[index] = self.fork(self.inputs[index])
            else:
                found[index] = self.new_state(given.component, given.kind)
        return found

    def is_held_up(self, window: int) -> bool:
        """Whether the client has not taken enough of what was sent."""
        first, taken = self.start.first, self.guest.taken
        return any(first.get(kind, 0) + n - taken.get(kind, 0) >= window for kind, n in self.counts.items())

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
        self.inputs.clear()
        self.early.clear()
