"""One request's progress through one seat's part of a plan: counters and slots, no graph, no IO, no clock.

A run is told what happened (`start`, `deliver`, `complete`) and leaves what follows in plain lists: calls that are
ready, messages for other seats, emissions for the client. Whoever drives it (a worker, a test, a simulator) decides
what runs next; the answer does not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mstar.plan.acts import ACTS
from mstar.plan.frame import Frame, Ready
from mstar.plan.regions import GATE, TURN, gate, told, turn_root
from mstar.plan.straight import count_from
from mstar.plan.streams import ReaderEnd, WriterEnd, close, receive, released
from mstar.plan.tables import Call, Do, Emit, Instruction, Part, Segment, Send
from mstar.plan.wires import Closed, ItemSent, Message, Path, Released, ValueSent

CALL = Do.CALL
UNCOUNTED: list[int] = []
"""The counters of a frame that follows a straight body."""


class Host(Protocol):
    """Where a run gets states from."""

    def new_state(self, component: str, kind: str) -> Any:
        """A fresh state of a component."""
        ...

    def fork(self, state: Any) -> Any:
        """A copy of a state that goes its own way."""
        ...


class Run:
    """One walk of one request at one seat."""

    def __init__(self, part: Part, host: Host, ready: list[Ready], *, is_tight: bool = False) -> None:
        self.part = part
        self.host = host
        self.ready = ready
        """Where calls go whose arguments are there; shared by all runs of a worker."""
        self.is_tight = is_tight
        """Hold as few items in streams as the walk can do with."""
        self.outbox: list[Message] = []
        self.emitted: list[tuple[Emit, Any]] = []
        self.outputs: dict[int, Any] = {}
        self.states: dict[int, Any] = {}
        self.is_done = 0 not in part.bodies
        self.todo: list[tuple[Frame, int]] = []
        self.mail: dict[tuple[int, Path], Any] = {}
        """Values that came before the iteration they are for."""
        self.expected: dict[tuple[int, Path], Frame] = {}
        self.readers: dict[tuple[int, Path], ReaderEnd] = {}
        self.writers: dict[tuple[int, Path], WriterEnd] = {}

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin, given all inputs of the walk (those that are not for this seat may be None)."""
        if self.is_done:
            return
        root = Frame(self, self.part.bodies[0], None, None, turn_root)
        for index, slot in self.part.inputs:
            root.slots[slot] = inputs[index]
        self.begin(root)
        self.drain()

    def deliver(self, message: Message) -> None:
        """Something came from another seat."""
        match message:
            case ValueSent():
                self._arrive(message.value, message.path, message.payload)
            case ItemSent():
                receive(self, self.reader(message.reader, message.path), message.payload)
            case Closed():
                close(self, self.reader(message.reader, message.path))
            case Released():
                writer = self.writer(message.stream, message.path)
                released(self, writer, message.reader, message.count)
        self.drain()

    def begin(self, frame: Frame) -> None:
        """Start a run of a frame's body."""
        table = frame.table
        if table.first is not None:
            frame.pending = UNCOUNTED
            self.follow(frame, table.first)
            return
        frame.pending = [*table.pending]
        frame.left = table.count
        for index in table.entry:
            self.todo.append((frame, index))
        if table.arrivals:
            path = frame.path()
            for value in table.arrivals:
                key = (value, path)
                if key in self.mail:
                    self._accept(frame, value, self.mail.pop(key))
                else:
                    self.expected[key] = frame
        elif not table.count:
            self.todo.append((frame, TURN))

    def _arrive(self, value: int, path: Path, payload: Any) -> None:
        frame = self.expected.pop((value, path), None)
        if frame is None:
            self.mail[value, path] = payload
        elif value in frame.table.arrivals:
            self._accept(frame, value, payload)
        else:
            told(self, frame, payload)

    def _accept(self, frame: Frame, value: int, payload: Any) -> None:
        arrival = frame.table.arrivals[value]
        frame.slots[arrival.slot] = payload
        self._wake(frame, arrival.wakes)

    def _wake(self, frame: Frame, wakes: Iterable[int]) -> None:
        pending = frame.pending
        for index in wakes:
            pending[index] -= 1
            if not pending[index]:
                self.todo.append((frame, index))
        frame.left -= 1
        if not frame.left:
            self.todo.append((frame, TURN))

    def finish(self, frame: Frame, instruction: Instruction) -> None:
        """An instruction has filled its slots."""
        if instruction.sends:
            self.send(frame, instruction.sends)
        self._wake(frame, instruction.wakes)

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
                if instruction.do is CALL:
                    ready.append((frame, instruction))
                elif ACTS[instruction.do](self, frame, instruction):
                    self.finish(frame, instruction)
            elif index == TURN:
                if frame.turn(self, frame):
                    self.begin(frame)
            else:
                assert index == GATE
                gate(self, frame)

    def follow(self, frame: Frame, segment: Segment) -> None:
        """Go on in a straight body: to its next call, or to its end."""
        while True:
            for act in segment.acts:
                if not ACTS[act.do](self, frame, act):
                    self.todo.extend(count_from(frame, act.index))
                    return
            if segment.call is not None:
                self.ready.append((frame, segment.call))
                return
            if not frame.turn(self, frame):
                return
            assert frame.table.first is not None, "only a straight body has segments"
            segment = frame.table.first

    def reader(self, number: int, path: Path) -> ReaderEnd:
        """A reading end here, made by whoever comes first: its reader, its writer or an item."""
        key = (number, path)
        if key not in self.readers:
            self.readers[key] = ReaderEnd(number, path)
        return self.readers[key]

    def writer(self, number: int, path: Path) -> WriterEnd:
        """A filling end here, made by whoever comes first: its writer or a reader that is ahead of it."""
        key = (number, path)
        if key not in self.writers:
            self.writers[key] = WriterEnd(number, path)
        return self.writers[key]

    def leftovers(self) -> list[str]:
        """What a run still holds. Once a walk is over everywhere and all messages are delivered: nothing."""
        kept = {"mail": self.mail, "expected": self.expected, "readers": self.readers, "writers": self.writers}
        return [f"{name}: {sorted(held)}" for name, held in kept.items() if held]

    def drop(self) -> None:
        """Take it apart. Frames, runs and streams know each other, and what is in them would live on for long."""
        for reader in self.readers.values():
            reader.waiting = None
            reader.items.clear()
        for writer in self.writers.values():
            writer.parked.clear()
        for held in (self.mail, self.expected, self.readers, self.writers, self.outputs, self.states):
            held.clear()
        for held in (self.todo, self.outbox, self.emitted):
            held.clear()

    def end(self, root: Frame) -> None:
        """The walk has run to its end here."""
        self.outputs = {index: root.slots[slot] for index, slot in self.part.outputs}
        self.states = {index: root.slots[slot] for index, slot in self.part.states}
        self.is_done = True


def complete(calls: Sequence[Ready], results: Sequence[tuple[Any, ...]]) -> None:
    """A batch of ready calls has run; its results in the same order."""
    last: Instruction | None = None
    outs: tuple[int, ...] = ()
    slot, segment, call = -1, None, None
    for (frame, instruction), values in zip(calls, results, strict=True):
        if instruction is not last:  # most calls of a batch are the same one: look at its table once
            last, outs, segment = instruction, instruction.outs, instruction.then
            slot = outs[0] if len(outs) == 1 else -1
            call = segment.call if segment is not None and not segment.acts else None
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
            run.follow(frame, segment)
        if run.todo:
            run.drain()


def columns(calls: Sequence[Ready]) -> dict[str, list[Any]]:
    """The arguments of ready calls of one op, by parameter: one value for each call."""
    first = calls[0][1]
    table: Call = first.detail
    slots = [frame.slots for frame, instruction in calls if instruction is first]
    if len(slots) == len(calls):
        found = {name: [row[arg] for row in slots] for name, arg in zip(table.names, first.args, strict=True)}
        return found | {name: [constant] * len(calls) for name, constant in table.constants}
    rows = [frame.arguments(instruction) for frame, instruction in calls]
    return {name: [row[name] for row in rows] for name in rows[0]}
