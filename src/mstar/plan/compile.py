"""Plan compiler: generates the tables of every seat (see `tables`) from lowered walks and their partitions.

`partitioner` decides where each step runs; this module assigns slots, instructions, dependency counters and sends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from mstar.graph import ir
from mstar.graph.types import StateType
from mstar.plan.critical_path import CriticalPaths
from mstar.plan.lower import STREAM_END, Body, Lowered, Step, Val, lower
from mstar.plan.partitioner import REGIONS, Partitioner, all_inner, all_steps
from mstar.plan.placement import Placement
from mstar.plan.straight_line import compile_straight_line
from mstar.plan.tables import (
    BatchKey,
    BodyTable,
    Call,
    CutEdge,
    Emit,
    Instruction,
    NewState,
    Opcode,
    PartitionProgram,
    Plan,
    Plans,
    Reader,
    Region,
    RemoteInput,
    Send,
    Window,
    Writer,
)

MIN_STREAM_BOUND_ITEMS = 32
"""Minimum buffer of a stream in items: large enough that a writer seldom waits for its reader to be scheduled."""


def plan(graphs: Mapping[str, ir.Walk], placement: Placement | None = None) -> Plans:
    """Plan every walk of a model. Raises PlacementError if the placement does not match the walks."""
    placement = placement or Placement()
    placement.check(graphs)
    keys: dict[BatchKey, int] = {}
    walks = {name: _Planner(lower(graph), placement, keys).plan() for name, graph in graphs.items()}
    return Plans(walks, tuple(keys), placement.workers(), placement.replica_groups())


class _Planner:
    """Planner of one walk: the numbers that all seats share."""

    def __init__(self, lowered: Lowered, placement: Placement, keys: dict[BatchKey, int]) -> None:
        self.lowered = lowered
        self.partitioner = Partitioner(lowered, placement)
        self.keys = keys
        self.critical_paths = CriticalPaths(lowered, self.key)
        steps = [*all_steps(lowered.root)]
        self.stream_numbers = {name: number for number, name in enumerate(lowered.readers)}
        readers = [step for stream_readers in lowered.readers.values() for step in stream_readers]
        self.reader_numbers = {step.makes[0]: number for number, step in enumerate(readers)}
        self.writers = {
            step.node.stream: step for step in steps if isinstance(step.node, ir.Open) and step.kind == "writer"
        }
        self.bodies = [lowered.root, *(inner for step in steps for inner in step.inner)]
        calls = [(step, step.node) for step in steps if isinstance(step.node, ir.Call)]
        self.calls = tuple((self.key(node), self.partitioner.step_seat(step)) for step, node in calls)
        self.call_indexes = {step: at for at, (step, _) in enumerate(calls)}

    def key(self, call: ir.Call) -> int:
        return self.keys.setdefault(BatchKey(call.component, call.op, call.static), len(self.keys))

    def targets(self, value: Val) -> list[int]:
        """Seats that receive a value from the seat that computes it."""
        if value.carry is not None or value.is_counter or value in self.lowered.inputs or value.type is STREAM_END:
            return []
        home = self.partitioner.value_seat(value)
        return [
            s
            for s in range(len(self.partitioner.worker_sets))
            if s != home and (s, value) in self.partitioner.requirements.present
        ]

    def plan(self) -> Plan:
        lowered, worker_sets = self.lowered, tuple(self.partitioner.worker_sets)
        programs = tuple(_PartitionCompiler(self, seat).program() for seat in range(len(worker_sets)))
        return Plan(
            lowered.walk.name,
            worker_sets,
            programs,
            tuple(self.cut_edges()),
            tuple(value.name for value in lowered.walk.inputs),
            lowered.walk.is_tuple,
            self.calls,
            tuple((f"~{name}", self.bound(name)) for name in self.stream_numbers),
        )

    def min_bound(self, stream: str) -> int:
        """Minimum buffer of a stream in items: its largest window."""
        nodes = [step.node for step in self.lowered.readers[stream]]
        return max(1, *(node.size for node in nodes if isinstance(node, ir.Windows)), 1)

    def bound(self, stream: str) -> int:
        """Maximum buffered items of a stream."""
        return max(MIN_STREAM_BOUND_ITEMS, 2 * self.min_bound(stream))

    def cut_edges(self) -> list[CutEdge]:
        edges: list[CutEdge] = []
        for step in all_steps(self.lowered.root):
            for value in (*step.makes, *step.window):
                home, depth = self.partitioner.value_seat(value), value.body.depth()
                edges += [CutEdge(value.name, value.type, home, target, depth) for target in self.targets(value)]
            if isinstance(step.node, ir.Put):
                value, home = step.uses[0], self.partitioner.step_seat(step)
                depth = step.body.depth()
                for reader in self.lowered.readers[step.node.stream]:
                    if (target := self.partitioner.step_seat(reader)) != home:
                        name = f"~{step.node.stream}"
                        edges.append(CutEdge(name, value.type, home, target, depth, is_stream=True))
        return list(dict.fromkeys(edges))


class _PartitionCompiler:
    """Compiles the program of one seat."""

    def __init__(self, planner: _Planner, seat: int) -> None:
        self.planner = planner
        self.partitioner = planner.partitioner
        self.requirements = planner.partitioner.requirements
        self.seat = seat
        self.slots: dict[Body, dict[Val, int]] = {}
        self.local_indexes: dict[Body, dict[int, int]] = {}
        self.remote_inputs: dict[Body, list[Val]] = {}

    def program(self) -> PartitionProgram:
        lowered = self.planner.lowered
        bodies = [body for body in self.planner.bodies if (self.seat, body) in self.requirements.participants]
        for body in bodies:
            self.number(body)
        tables = {body.number: self.table(body) for body in bodies}
        root = self.slots.get(lowered.root, {})
        home = self.partitioner.value_seat
        return PartitionProgram(
            self.seat,
            tables,
            tuple((i, root[value]) for i, value in enumerate(lowered.inputs) if value in root),
            tuple((i, root[value]) for i, value in enumerate(lowered.outputs) if home(value) == self.seat),
            tuple((i, root[value]) for i, value in lowered.final_states if home(value) == self.seat),
        )

    def number(self, body: Body) -> None:
        """Assign indexes to the local steps of a body and slots to its values."""
        local_steps = [step for step in body.steps if self.is_local(step)]
        self.local_indexes[body] = {step.index: index for index, step in enumerate(local_steps)}
        slots: dict[Val, int] = {}
        captured = sorted(self.requirements.captured[self.seat, body], key=lambda value: value.number)
        made = [value for step in local_steps for value in step.makes]
        region = body.owner
        bound = [*(carry.inner for carry in region.carries), *region.window] if region is not None else []
        if body.counter is not None:
            bound.append(body.counter)
        inputs = self.planner.lowered.inputs if region is None else []
        self.remote_inputs[body] = self.incoming_values(body)
        for value in (*inputs, *captured, *bound, *self.remote_inputs[body], *made):
            if (self.seat, value) in self.requirements.present or self.is_made_locally(value):
                self.assign_slot(value, body, slots)
        self.slots[body] = slots

    def is_made_locally(self, value: Val) -> bool:
        return value.maker is not None and self.partitioner.value_seat(value) == self.seat

    def assign_slot(self, value: Val, body: Body, slots: dict[Val, int]) -> None:
        """Assign the next free slot. A state that a local call extends in place keeps its slot."""
        before = value.extended_from
        if before is not None and value.body is body and self.is_made_locally(value):
            slots[value] = slots[before]
        else:
            slots.setdefault(value, len(set(slots.values())))

    def incoming_values(self, body: Body) -> list[Val]:
        """Values of this body that other seats send, except the flag for one more window (awaited apart)."""
        makers = [value for step in body.steps for value in step.makes]
        windows = body.owner.window[1:] if body.owner is not None and body.owner.window else []
        return [value for value in (*makers, *windows) if self.seat in self.planner.targets(value)]

    def is_local(self, step: Step) -> bool:
        if step.kind in REGIONS:
            return (self.seat, step.inner[0]) in self.requirements.participants
        return self.partitioner.step_seat(step) == self.seat

    def table(self, body: Body) -> BodyTable:
        local_steps = [body.steps[index] for index in self.local_indexes[body]]
        slots, remote_inputs = self.slots[body], self.remote_inputs[body]
        waits: list[set[int]] = []
        waiting: defaultdict[Val, list[int]] = defaultdict(list)
        for index, step in enumerate(local_steps):
            required = self.required_values(step)
            makers = {value.maker.index for value in required if value.maker is not None and value.maker.body is body}
            before = (step.before | makers) - {step.index}
            waits.append({self.local_indexes[body][i] for i in before if i in self.local_indexes[body]})
            for value in required:
                if value in remote_inputs:
                    waiting[value].append(index)
        dependents: defaultdict[int, list[int]] = defaultdict(list)
        for index, before in enumerate(waits):
            for earlier in sorted(before):
                dependents[earlier].append(index)
        pending = [len(before) for before in waits]
        for indexes in waiting.values():
            for index in indexes:
                pending[index] += 1
        instructions = tuple(self.instruction(i, step, tuple(dependents[i])) for i, step in enumerate(local_steps))
        table = BodyTable(
            body.number,
            len(set(slots.values())),
            instructions,
            tuple(pending),
            tuple(index for index, count in enumerate(pending) if count == 0),
            len(local_steps) + len(remote_inputs),
            {value.number: RemoteInput(slots[value], tuple(waiting[value])) for value in remote_inputs},
        )
        return compile_straight_line(table)

    def required_values(self, step: Step) -> list[Val]:
        """Values of its own body that a step needs at this seat before it starts."""
        if step.kind not in REGIONS:
            return step.uses
        inside = {value for inner in step.inner for value in self.requirements.captured[self.seat, inner]}
        inits = [carry.init for carry in step.carries if carry.inner in self.slots[step.inner[0]]]
        control = [step.control] if step.control is not None else []
        reader = step.uses if step.kind == "windows" and self.partitioner.step_seat(step) == self.seat else []
        return sorted({*inside, *inits, *control, *reader}, key=lambda value: value.number)

    def sends(self, values: list[Val], slots: dict[Val, int]) -> tuple[Send, ...]:
        return tuple(
            Send(slots[value], target, value.number, isinstance(value.type, StateType))
            for value in values
            if self.is_made_locally(value)
            for target in self.planner.targets(value)
        )

    def instruction(self, index: int, step: Step, dependents: tuple[int, ...]) -> Instruction:
        slots = self.slots[step.body]
        opcode = Opcode[step.kind.upper()]
        uses = step.uses if step.kind not in REGIONS else [v for v in step.uses if v.type is STREAM_END and v in slots]
        outs = [value for value in step.makes if value.extended_from is None and self.is_made_locally(value)]
        sends = self.sends(step.makes, slots)
        args = tuple(slots[value] for value in uses)
        out_slots = tuple(slots[value] for value in outs)
        return Instruction(index, opcode, args, out_slots, dependents, sends, self.detail(step))

    def detail(self, step: Step) -> Any:
        node = step.node
        if step.kind in REGIONS:
            return self.region(step)
        match step.kind, node:
            case "call", ir.Call():
                names = tuple(name for name, arg in node.args if isinstance(arg, ir.Value))
                constants = tuple((name, arg) for name, arg in node.args if not isinstance(arg, ir.Value))
                paths = self.planner.critical_paths.paths(step)
                constants += node.static
                return Call(self.planner.key(node), names, constants, paths, self.planner.call_indexes[step])
            case "new", ir.New():
                return NewState(node.component, str(node.out.type).partition(" ")[2])
            case "const", ir.Const():
                return node.literal
            case "field", ir.Field():
                return node.name
            case "writer", ir.Open():
                return self.writer(node)
            case "reader", ir.Get() | ir.Windows():
                number = self.planner.reader_numbers[step.makes[0]]
                stream = self.planner.stream_numbers[node.stream]
                source = self.partitioner.step_seat(self.planner.writers[node.stream])
                return Reader(number, stream, source, self.sibling_readers(step))
            case "emit", ir.Emit():
                return Emit(node.kind, node.clock)
            case _:
                return None

    def sibling_readers(self, step: Step) -> tuple[int, ...]:
        """Other readers of the same body and seat that share a region with this one."""
        regions = [region for region in step.body.steps if self.reads(region, step)]
        others = [other for other in step.body.steps if other.kind == "reader" and other is not step]
        return tuple(
            self.planner.reader_numbers[other.makes[0]]
            for other in others
            if self.partitioner.step_seat(other) == self.seat and any(self.reads(region, other) for region in regions)
        )

    def reads(self, region: Step, reader: Step) -> bool:
        return any(
            reader.makes[0] in step.uses for step in (region, *all_inner(region)) if step.kind in ("get", "windows")
        )

    def writer(self, node: ir.Open) -> Writer:
        planner = self.planner
        steps = planner.lowered.readers[node.stream]
        readers = tuple((self.partitioner.step_seat(step), planner.reader_numbers[step.makes[0]]) for step in steps)
        name = node.stream
        return Writer(planner.stream_numbers[name], readers, planner.bound(name), planner.min_bound(name))

    def region(self, step: Step) -> Region:
        outer = self.slots[step.body]
        inner = [self.slots[body] for body in step.inner]
        is_reading = step.kind == "windows" and self.partitioner.step_seat(step) == self.seat
        counter = step.inner[0].counter
        node = step.node
        return Region(
            bodies=tuple(body.number for body in step.inner),
            copy_in=tuple(self.copies_in(step, body) for body in step.inner),
            carry=self.carry_copies(step, inner[0]) if step.carries else (),
            copy_out=self.copies_out(step),
            collect=tuple((inner[0][v], outer[out]) for v, out in step.collects if self.is_made_locally(out)),
            stop=tuple(inner[0][flag] for flag in step.stops),
            control=outer[step.control] if step.control is not None else -1,
            steps=node.steps if isinstance(node, ir.Loop) and isinstance(node.steps, int) else 0,
            counter=inner[0].get(counter, -1) if counter is not None else -1,
            more=step.window[0].number if step.window and not is_reading else -1,
            window=self.window(step, inner[0]) if is_reading else None,
        )

    def window(self, step: Step, inner: dict[Val, int]) -> Window:
        node = step.node
        assert isinstance(node, ir.Windows)
        more, item, fresh = (inner[value] for value in step.window)
        sends = self.sends(step.window, inner)
        return Window(node.size, node.stride, node.first, node.flush, more, item, fresh, sends)

    def copies_in(self, step: Step, body: Body) -> tuple[tuple[int, int], ...]:
        """Outer slots to copy into an inner body: captured values and the initial values of its carries."""
        outer, inner = self.slots[step.body], self.slots[body]
        captured = sorted(self.requirements.captured[self.seat, body], key=lambda value: value.number)
        inits = [(outer[carry.init], inner[carry.inner]) for carry in step.carries if carry.inner in inner]
        return (*((outer[value], inner[value]) for value in captured), *inits)

    def carry_copies(self, step: Step, inner: dict[Val, int]) -> tuple[tuple[int, int], ...]:
        pairs = [(inner[c.next], inner[c.inner]) for c in step.carries if c.inner in inner]
        return tuple((source, target) for source, target in pairs if source != target)

    def copies_out(self, step: Step) -> tuple[tuple[tuple[int, int], ...], ...]:
        outer = self.slots[step.body]
        if step.kind == "choose":
            local = [choice for choice in step.choices if self.is_made_locally(choice.out)]
            arms = [
                [(choice.then, choice.out) for choice in local],
                [(choice.otherwise, choice.out) for choice in local],
            ]
            slots = [self.slots[body] for body in step.inner]
            return tuple(
                tuple((inner[source], outer[out]) for source, out in pairs)
                for inner, pairs in zip(slots, arms, strict=True)
            )
        inner = self.slots[step.inner[0]]
        local = [carry for carry in step.carries if self.is_made_locally(carry.out)]
        return (tuple((inner[carry.inner], outer[carry.out]) for carry in local),)
