"""Graph partitioning: assigns each step of a walk to a seat, and computes which values each seat needs.

A *seat* is a partition that a request binds to one worker; ops with the same candidate workers share a seat. A call
runs where its op is placed. Every other step is cheap and runs next to its consumer, to minimize transfers: a take with
its consumer, a put with its value. All puts of one stream run at one seat, as do all gets and all emissions of one
kind, so that their order is local. A seat with any step inside a region participates in the region: it runs its own
copy of the loop and receives the control values that it cannot compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mstar.graph import ir
from mstar.graph.types import StateType
from mstar.plan.lower import Body, Lowered, Step, Val
from mstar.plan.placement import Placement, WorkerSet

REGIONS = frozenset({"loop", "windows", "each", "choose"})


def all_steps(body: Body) -> Iterator[Step]:
    """Yield every step of a body and of its inner bodies, outer before inner."""
    for step in body.steps:
        yield step
        for inner in step.inner:
            yield from all_steps(inner)


def all_inner(step: Step) -> Iterator[Step]:
    """Yield every step inside a region."""
    for inner in step.inner:
        yield from all_steps(inner)


class Partitioner:
    """Seats of one walk under one placement."""

    def __init__(self, lowered: Lowered, placement: Placement) -> None:
        self.lowered = lowered
        self.worker_sets: list[WorkerSet] = []
        self._step_seats: dict[Step, int] = {}
        self._uses: defaultdict[Val, list[int | Val]] = defaultdict(list)
        self._value_seats: dict[Val, int] = {}
        self._place_calls(placement)
        self._list_uses()
        self.requirements = SeatRequirements(self)

    def _place_calls(self, placement: Placement) -> None:
        state_indexes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for step in all_steps(self.lowered.root):
            if isinstance(step.node, ir.Call):
                states = [value.name for value in step.uses if isinstance(value.type, StateType)]
                indexes = state_indexes[step.node.component]
                spread_index = indexes.setdefault(states[0], len(indexes)) if states else 0
                worker_set = placement.worker_set(self.lowered.walk.name, step.node, spread_index)
                self._step_seats[step] = self._seat(worker_set)
        if not self.worker_sets:
            self._seat(placement.any_worker_set())

    def _seat(self, worker_set: WorkerSet) -> int:
        if worker_set not in self.worker_sets:
            self.worker_sets.append(worker_set)
        return self.worker_sets.index(worker_set)

    def _list_uses(self) -> None:
        """List the uses of each value in program order: seats that use it, or values that it becomes."""
        uses = self._uses
        for step in all_steps(self.lowered.root):
            for value in step.uses:
                if step.kind == "call":
                    uses[value].append(self._step_seats[step])
                elif step.kind in ("take", "field", "fork", "get"):
                    uses[value].extend(step.makes)
            if step.control is not None:
                inside = (self._step_seats[inner] for inner in all_inner(step) if inner.kind == "call")
                uses[step.control] += [*inside][:1]
            for carry in step.carries:
                uses[carry.init] += [carry.inner, carry.out]
                uses[carry.next] += [carry.inner, carry.out]
            for choice in step.choices:
                uses[choice.then].append(choice.out)
                uses[choice.otherwise].append(choice.out)
            for inner, out in step.collects:
                uses[inner].append(out)

    def _first_use(self, value: Val, seen: set[Val] | None = None) -> int | None:
        """Seat of the first call that a value reaches without passing through another call."""
        seen = set() if seen is None else seen
        for use in self._uses[value]:
            if isinstance(use, int):
                return use
            if use not in seen:
                seen.add(use)
                seat = self._first_use(use, seen)
                if seat is not None:
                    return seat
        return None

    def value_seat(self, value: Val) -> int:
        """Seat where a value is computed."""
        if value not in self._value_seats:
            self._value_seats[value] = self._find_value_seat(value)
        return self._value_seats[value]

    def _find_value_seat(self, value: Val) -> int:
        step = value.maker
        if value.carry is not None:
            used = self._first_use(value)
            return self.value_seat(value.carry.init) if used is None else used
        if step is None:
            return self._first_use(value) or 0
        for carry in step.carries:
            if carry.out is value:
                return self.value_seat(carry.next)
        for choice in step.choices:
            if choice.out is value:
                return self.value_seat(choice.then)
        for inner, out in step.collects:
            if out is value:
                return self.value_seat(inner)
        return self.step_seat(step)

    def step_seat(self, step: Step) -> int:
        """Seat of a step that is not a region; for windows, the seat that reads the stream."""
        if step not in self._step_seats:
            self._step_seats[step] = self._find_step_seat(step)
        return self._step_seats[step]

    def _find_step_seat(self, step: Step) -> int:
        node = step.node
        if step.kind in ("put", "writer", "close"):
            assert isinstance(node, ir.Put | ir.Open)
            return self._writer_seat(node.stream)
        if isinstance(node, ir.Emit):
            return self.value_seat(self._first_step(ir.Emit, "kind", node.kind).uses[0])
        if step.kind in ("reader", "windows", "get", "detach"):
            return self._reader_seat(step)
        if step.kind == "count":
            return self.value_seat(step.uses[0])
        return self._neighbor_seat(step)

    def _first_step(self, cls: type[ir.Node], key: str, value: str) -> Step:
        """First step in program order of a node class with this field value."""
        return next(
            step
            for step in all_steps(self.lowered.root)
            if type(step.node) is cls and getattr(step.node, key) == value and step.kind != "reader"
        )

    def _writer_seat(self, stream: str) -> int:
        return self.value_seat(self._first_step(ir.Put, "stream", stream).uses[0])

    def _reader_seat(self, step: Step) -> int:
        """Windows are read where they are used; all gets of a stream run where the first item is used."""
        node = step.node
        assert isinstance(node, ir.Windows | ir.Get | ir.Open)
        if isinstance(node, ir.Windows):
            first = next(s for s in all_steps(self.lowered.root) if s.node is node and s.kind == "windows")
        else:
            first = self._first_step(ir.Get, "stream", node.stream)
        for value in first.window[1:] or first.makes:
            used = self._first_use(value)
            if used is not None:
                return used
        return self._writer_seat(node.stream)

    def _neighbor_seat(self, step: Step) -> int:
        for value in step.makes:
            used = self._first_use(value)
            if used is not None:
                return used
        sources = [value for value in step.uses if not value.is_counter]
        return self.value_seat(sources[0]) if sources else 0


class SeatRequirements:
    """Values that each seat needs in each body, and the regions in which each seat participates."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner
        self.present: set[tuple[int, Val]] = set()
        """(seat, value): the seat has this value in the body that makes it."""
        self.captured: defaultdict[tuple[int, Body], set[Val]] = defaultdict(set)
        """(seat, body): outer values that the seat copies into a body when it enters it."""
        self.participants: set[tuple[int, Body]] = set()
        self._seen: set[tuple[int, Val, Body]] = set()
        lowered = partitioner.lowered
        for step in all_steps(lowered.root):
            self._start(step)
        for value in (*lowered.outputs, *(version for _, version in lowered.final_states)):
            self.need(partitioner.value_seat(value), value, lowered.root)

    def _start(self, step: Step) -> None:
        partitioner = self.partitioner
        if step.kind not in REGIONS or step.kind == "windows":
            seat = partitioner.step_seat(step)
            self.join(seat, step.body)
            for value in step.uses:
                self.need(seat, value, step.body)
        if step.kind == "windows":
            self.join(partitioner.step_seat(step), step.inner[0])
        for carry in step.carries:
            self.need(partitioner.value_seat(carry.out), carry.inner, step.inner[0])
        for choice in step.choices:
            seat = partitioner.value_seat(choice.out)
            self.need(seat, choice.then, step.inner[0])
            self.need(seat, choice.otherwise, step.inner[1])
        for inner, _ in step.collects:
            self.need(partitioner.value_seat(inner), inner, step.inner[0])

    def join(self, seat: int, body: Body) -> None:
        """Record that a seat participates in a body and in all bodies around it."""
        if (seat, body) in self.participants:
            return
        self.participants.add((seat, body))
        if (region := body.owner) is None:
            return
        self.join(seat, region.body)
        for arm in region.inner:
            self.join(seat, arm)
        if region.control is not None:
            self.need(seat, region.control, region.body)
        for flag in region.stops:
            self.need(seat, flag, body)
        if region.window:
            self.need(seat, region.window[0], body)

    def need(self, seat: int, value: Val, body: Body) -> None:
        """Record that a seat uses a value inside a body."""
        if (seat, value, body) in self._seen:
            return
        self._seen.add((seat, value, body))
        self.join(seat, body)
        while body is not value.body:
            self.captured[seat, body].add(value)
            assert body.owner is not None
            body = body.owner.body
        self.present.add((seat, value))
        if (carry := value.carry) is not None:
            assert value.body.owner is not None
            self.need(seat, carry.init, value.body.owner.body)
            self.need(seat, carry.next, value.body)
