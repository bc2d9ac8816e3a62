"""Dataflow interpreter of one partition for one request: dependency counters and slots. No graph, no IO, no clock.

A run consumes events (`start`, `deliver`, `complete`) and leaves the consequences in plain lists: ready calls, messages
for other partitions, emissions for the client. Its driver (a worker, a test, the simulator) decides what runs next; the
result does not depend on that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mstar.plan.runtime.frame import Frame, Host, ReadyInstruction
from mstar.plan.runtime.handlers import HANDLERS
from mstar.plan.runtime.messages import IterationPath, MessageKind, PartitionMessage, value_sent
from mstar.plan.runtime.regions import BODY_END, NEXT_WINDOW, end_root, on_more_windows, try_next_window
from mstar.plan.runtime.stream_ends import ReaderEnd, WriterEnd
from mstar.plan.runtime.streams import close, on_consumed, receive
from mstar.plan.straight_line import resume_with_counters
from mstar.plan.tables import Call, Emit, Instruction, Opcode, PartitionProgram, Segment, Send

CALL = Opcode.CALL
NO_COUNTERS: list[int] = []
"""Dependency counters of a frame that executes a straight-line body."""


class PartitionRun:
    """Execution of one partition of one walk for one request."""

    def __init__(
        self, program: PartitionProgram, host: Host, ready: list[ReadyInstruction], *, has_minimal_buffers: bool = False
    ) -> None:
        self.program = program
        self.host = host
        self.ready = ready
        """Receives calls whose arguments are available; shared by all runs of a worker."""
        self.has_minimal_buffers = has_minimal_buffers
        """Whether streams use the smallest bound that cannot deadlock (for tests)."""
        self.outbox: list[PartitionMessage] = []
        self.emissions: list[tuple[Emit, Any]] = []
        self.outputs: dict[int, Any] = {}
        self.states: dict[int, Any] = {}
        self.is_done = 0 not in program.bodies
        self.todo: list[tuple[Frame, int]] = []
        self.early_values: dict[tuple[int, IterationPath], Any] = {}
        """Values that arrived before their iteration started."""
        self.expected: dict[tuple[int, IterationPath], Frame] = {}
        self.readers: dict[tuple[int, IterationPath], ReaderEnd] = {}
        self.writers: dict[tuple[int, IterationPath], WriterEnd] = {}

    def start(self, inputs: Sequence[Any]) -> None:
        """Start with all inputs of the walk; those of other partitions can be None."""
        if self.is_done:
            return
        root = Frame(self, self.program.bodies[0], None, None, end_root)
        for index, slot in self.program.inputs:
            root.slots[slot] = inputs[index]
        self.begin(root)
        self.drain()

    def deliver(self, message: PartitionMessage) -> None:
        """Process a message from another partition."""
        match message.kind:
            case MessageKind.VALUE:
                self._on_value(message.target, message.path, message.payload)
            case MessageKind.STREAM_ITEM:
                receive(self, self.reader(message.target, message.path), message.payload)
            case MessageKind.STREAM_CLOSED:
                close(self, self.reader(message.target, message.path))
            case MessageKind.STREAM_CONSUMED:
                on_consumed(self, self.writer(message.target, message.path), message.reader, message.item_count)
        self.drain()

    def begin(self, frame: Frame) -> None:
        """Start one iteration of a frame's body."""
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
        remote_input = frame.table.remote_inputs[value]
        frame.slots[remote_input.slot] = payload
        self._notify_dependents(frame, remote_input.dependents)

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
        """Send the results of an instruction and release its dependents."""
        if instruction.sends:
            self.send(frame, instruction.sends)
        self._notify_dependents(frame, instruction.dependents)

    def send(self, frame: Frame, sends: tuple[Send, ...]) -> None:
        """Send slots of a frame to other partitions."""
        path = frame.path()
        for send in sends:
            payload = frame.slots[send.slot]
            if send.is_state:  # a snapshot: the original can change before the message is read
                payload = self.host.fork(payload)
            self.outbox.append(value_sent(send.seat, send.value, path, payload))

    def drain(self) -> None:
        """Execute every instruction that needs no op."""
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
        """Continue a straight-line body to its next call or to its end."""
        while True:
            for instruction in segment.instructions:
                if not HANDLERS[instruction.opcode](self, frame, instruction):
                    self.todo.extend(resume_with_counters(frame, instruction.index))
                    return
            if segment.call is not None:
                self.ready.append((frame, segment.call))
                return
            if not frame.on_end(self, frame):
                return
            assert frame.table.first_segment is not None, "only a straight-line body has segments"
            segment = frame.table.first_segment

    def reader(self, number: int, path: IterationPath) -> ReaderEnd:
        """Get or create a reading end: its reader, its writer or an item can come first."""
        key = (number, path)
        if key not in self.readers:
            self.readers[key] = ReaderEnd(number, path)
        return self.readers[key]

    def writer(self, number: int, path: IterationPath) -> WriterEnd:
        """Get or create a writing end: its writer or a reader's credit can come first."""
        key = (number, path)
        if key not in self.writers:
            self.writers[key] = WriterEnd(number, path)
        return self.writers[key]

    def pending(self) -> list[str]:
        """Describe everything that the run still waits for; empty after a walk has finished in all partitions."""
        waiting = {
            "early_values": self.early_values,
            "expected": self.expected,
            "readers": self.readers,
            "writers": self.writers,
        }
        return [f"{name}: {sorted(held)}" for name, held in waiting.items() if held]

    def drop(self) -> None:
        """Break reference cycles between frames, the run and streams, so that values and states are freed at once."""
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
        """Record the outputs of the walk."""
        self.outputs = {index: root.slots[slot] for index, slot in self.program.outputs}
        self.states = {index: root.slots[slot] for index, slot in self.program.states}
        self.is_done = True


def complete(calls: Sequence[ReadyInstruction], results: Sequence[tuple[Any, ...]]) -> None:
    """Store the results of a batch of ready calls, given in the same order, and continue their runs."""
    last: Instruction | None = None
    outs: tuple[int, ...] = ()
    slot, segment, call = -1, None, None
    for (frame, instruction), values in zip(calls, results, strict=True):
        if instruction is not last:  # most calls of a batch share one instruction: read its table once
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


def complete_call(frame: Frame, instruction: Instruction, values: tuple[Any, ...]) -> None:
    """Store the results of one ready call and continue its run. An exception is that of its request alone."""
    outs, run = instruction.outs, frame.run
    if len(outs) == 1:
        frame.slots[outs[0]] = values[0]
    else:
        for slot, value in zip(outs, values, strict=True):
            frame.slots[slot] = value
    segment = instruction.next_segment
    if segment is None or frame.pending:
        run.finish(frame, instruction)
    else:
        run.run_segments(frame, segment)
    if run.todo:
        run.drain()


def columns(calls: Sequence[ReadyInstruction]) -> dict[str, list[Any]]:
    """Arguments of ready calls of one op as columns: parameter name to one value per call."""
    first = calls[0][1]
    table: Call = first.detail
    slots = [frame.slots for frame, instruction in calls if instruction is first]
    if len(slots) == len(calls):
        varying = {name: [row[arg] for row in slots] for name, arg in zip(table.names, first.args, strict=True)}
        return varying | {name: [constant] * len(calls) for name, constant in table.constants}
    rows = [frame.arguments(instruction) for frame, instruction in calls]
    return {name: [row[name] for row in rows] for name in rows[0]}
