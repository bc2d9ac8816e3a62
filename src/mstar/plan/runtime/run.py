"""One request's progress through one seat's part of a plan: counters and slots, no graph, no IO, no clock.

A run is told what happened (`start`, `deliver`, `complete`) and leaves what follows in plain lists: calls that are
ready, messages for other seats, emissions for the client. Whoever drives it (a worker, a test, a simulator) decides
what runs next; the answer does not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mstar.plan.runtime.frame import Frame, ReadyInstruction
from mstar.plan.runtime.handlers import HANDLERS
from mstar.plan.runtime.messages import IterationPath, SeatMessage, StreamClosed, StreamConsumed, StreamItem, ValueSent
from mstar.plan.runtime.regions import BODY_END, NEXT_WINDOW, end_root, on_more_windows, try_next_window
from mstar.plan.runtime.streams import ReaderEnd, WriterEnd, close, on_consumed, receive
from mstar.plan.straight_line import resume_with_counters
from mstar.plan.tables import Call, Emit, Instruction, Opcode, PartitionProgram, Segment, Send

CALL = Opcode.CALL
NO_COUNTERS: list[int] = []
"""The counters of a frame that follows a straight body."""


class Host(Protocol):
    """Where a run gets states from."""

    def new_state(self, component: str, kind: str) -> Any:
        """A fresh state of a component."""
        ...

    def fork(self, state: Any) -> Any:
        """A copy of a state that goes its own way."""
        ...


class PartitionRun:
    """One walk of one request at one seat."""

    def __init__(
        self, program: PartitionProgram, host: Host, ready: list[ReadyInstruction], *, has_minimal_buffers: bool = False
    ) -> None:
        self.program = program
        self.host = host
        self.ready = ready
        """Where calls go whose arguments are there; shared by all runs of a worker."""
        self.has_minimal_buffers = has_minimal_buffers
        """Hold as few items in streams as the walk can do with."""
        self.outbox: list[SeatMessage] = []
        self.emissions: list[tuple[Emit, Any]] = []
        self.outputs: dict[int, Any] = {}
        self.states: dict[int, Any] = {}
        self.is_done = 0 not in program.bodies
        self.todo: list[tuple[Frame, int]] = []
        self.early_values: dict[tuple[int, IterationPath], Any] = {}
        """Values that came before the iteration they are for."""
        self.expected: dict[tuple[int, IterationPath], Frame] = {}
        self.readers: dict[tuple[int, IterationPath], ReaderEnd] = {}
        self.writers: dict[tuple[int, IterationPath], WriterEnd] = {}

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin, given all inputs of the walk (those that are not for this seat may be None)."""
        if self.is_done:
            return
        root = Frame(self, self.program.bodies[0], None, None, end_root)
        for index, slot in self.program.inputs:
            root.slots[slot] = inputs[index]
        self.begin(root)
        self.drain()

    def deliver(self, message: SeatMessage) -> None:
        """Something came from another seat."""
        match message:
            case ValueSent():
                self._on_value(message.value, message.path, message.payload)
            case StreamItem():
                receive(self, self.reader(message.reader, message.path), message.payload)
            case StreamClosed():
                close(self, self.reader(message.reader, message.path))
            case StreamConsumed():
                writer = self.writer(message.stream, message.path)
                on_consumed(self, writer, message.reader, message.count)
        self.drain()

    def begin(self, frame: Frame) -> None:
        """Start a run of a frame's body."""
        table = frame.table
        if table.first_segment is not None:
            frame.pending = NO_COUNTERS
            self.run_segments(frame, table.first_segment)
            return
        frame.pending = [*table.pending]
        frame.remaining = table.count
        for index in table.entry:
            self.todo.append((frame, index))
        if table.remote_inputs:
            path = frame.path()
            for value in table.remote_inputs:
                key = (value, path)
                if key in self.early_values:
                    self._accept(frame, value, self.early_values.pop(key))
                else:
                    self.expected[key] = frame
        elif not table.count:
            self.todo.append((frame, BODY_END))

    def _on_value(self, value: int, path: IterationPath, payload: Any) -> None:
        frame = self.expected.pop((value, path), None)
        if frame is None:
            self.early_values[value, path] = payload
        elif value in frame.table.remote_inputs:
            self._accept(frame, value, payload)
        else:
            on_more_windows(self, frame, payload)

    def _accept(self, frame: Frame, value: int, payload: Any) -> None:
        arrival = frame.table.remote_inputs[value]
        frame.slots[arrival.slot] = payload
        self._notify_dependents(frame, arrival.dependents)

    def _notify_dependents(self, frame: Frame, dependents: Iterable[int]) -> None:
        pending = frame.pending
        for index in dependents:
            pending[index] -= 1
            if not pending[index]:
                self.todo.append((frame, index))
        frame.remaining -= 1
        if not frame.remaining:
            self.todo.append((frame, BODY_END))

    def finish(self, frame: Frame, instruction: Instruction) -> None:
        """An instruction has filled its slots."""
        if instruction.sends:
            self.send(frame, instruction.sends)
        self._notify_dependents(frame, instruction.dependents)

    def send(self, frame: Frame, sends: tuple[Send, ...]) -> None:
        """Tell other seats what slots of a frame hold."""
        path = frame.path()
        for send in sends:
            payload = frame.slots[send.slot]
            if send.is_state:  # as it is now: the one that stays may change before this is read
                payload = self.host.fork(payload)
            self.outbox.append(ValueSent(send.seat, send.value, path, payload))

    def drain(self) -> None:
        """Do everything that needs no op."""
        todo, ready = self.todo, self.ready
        while todo:
            frame, index = todo.pop()
            if index >= 0:
                instruction = frame.table.instructions[index]
                if instruction.opcode is CALL:
                    ready.append((frame, instruction))
                elif HANDLERS[instruction.opcode](self, frame, instruction):
                    self.finish(frame, instruction)
            elif index == BODY_END:
                if frame.on_end(self, frame):
                    self.begin(frame)
            else:
                assert index == NEXT_WINDOW
                try_next_window(self, frame)

    def run_segments(self, frame: Frame, segment: Segment) -> None:
        """Go on in a straight body: to its next call, or to its end."""
        while True:
            for act in segment.instructions:
                if not HANDLERS[act.opcode](self, frame, act):
                    self.todo.extend(resume_with_counters(frame, act.index))
                    return
            if segment.call is not None:
                self.ready.append((frame, segment.call))
                return
            if not frame.on_end(self, frame):
                return
            assert frame.table.first_segment is not None, "only a straight body has segments"
            segment = frame.table.first_segment

    def reader(self, number: int, path: IterationPath) -> ReaderEnd:
        """A reading end here, made by whoever comes first: its reader, its writer or an item."""
        key = (number, path)
        if key not in self.readers:
            self.readers[key] = ReaderEnd(number, path)
        return self.readers[key]

    def writer(self, number: int, path: IterationPath) -> WriterEnd:
        """A filling end here, made by whoever comes first: its writer or a reader that is ahead of it."""
        key = (number, path)
        if key not in self.writers:
            self.writers[key] = WriterEnd(number, path)
        return self.writers[key]

    def pending(self) -> list[str]:
        """What a run still holds. Once a walk is over everywhere and all messages are delivered: nothing."""
        kept = {
            "early_values": self.early_values,
            "expected": self.expected,
            "readers": self.readers,
            "writers": self.writers,
        }
        return [f"{name}: {sorted(held)}" for name, held in kept.items() if held]

    def drop(self) -> None:
        """Take it apart. Frames, runs and streams know each other, and what is in them would live on for long."""
        for reader in self.readers.values():
            reader.waiting = None
            reader.items.clear()
        for writer in self.writers.values():
            writer.blocked_puts.clear()
        for held in (self.early_values, self.expected, self.readers, self.writers, self.outputs, self.states):
            held.clear()
        for held in (self.todo, self.outbox, self.emissions):
            held.clear()

    def end(self, root: Frame) -> None:
        """The walk has run to its end here."""
        self.outputs = {index: root.slots[slot] for index, slot in self.program.outputs}
        self.states = {index: root.slots[slot] for index, slot in self.program.states}
        self.is_done = True


def complete(calls: Sequence[ReadyInstruction], results: Sequence[tuple[Any, ...]]) -> None:
    """A batch of ready calls has run; its results in the same order."""
    last: Instruction | None = None
    outs: tuple[int, ...] = ()
    slot, segment, call = -1, None, None
    for (frame, instruction), values in zip(calls, results, strict=True):
        if instruction is not last:  # most calls of a batch are the same one: look at its table once
            last, outs, segment = instruction, instruction.outs, instruction.next_segment
            slot = outs[0] if len(outs) == 1 else -1
            call = segment.call if segment is not None and not segment.instructions else None
        slots, run = frame.slots, frame.run
        if slot >= 0:
            slots[slot] = values[0]
        else:
            for each_slot, value in zip(outs, values, strict=True):
                slots[each_slot] = value
        if segment is None or frame.pending:
            run.finish(frame, instruction)
        elif call is not None:
            run.ready.append((frame, call))
            continue
        else:
            run.run_segments(frame, segment)
        if run.todo:
            run.drain()


def columns(calls: Sequence[ReadyInstruction]) -> dict[str, list[Any]]:
    """The arguments of ready calls of one op, by parameter: one value for each call."""
    first = calls[0][1]
    table: Call = first.detail
    slots = [frame.slots for frame, instruction in calls if instruction is first]
    if len(slots) == len(calls):
        found = {name: [row[arg] for row in slots] for name, arg in zip(table.names, first.args, strict=True)}
        return found | {name: [constant] * len(calls) for name, constant in table.constants}
    rows = [frame.arguments(instruction) for frame, instruction in calls]
    return {name: [row[name] for row in rows] for name in rows[0]}
