"""What the instructions do that need no op, and the table that finds them.

An act says whether it is done. One that is not has arranged to be tried again, or to be finished by its region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mstar.plan.runtime.frame import Frame
from mstar.plan.runtime.regions import choose, each, loop, windows
from mstar.plan.runtime.streams import close_writer, detach, open_reader, open_writer, put, take_next
from mstar.plan.tables import Emit, Instruction, NewState, Opcode

if TYPE_CHECKING:
    from mstar.plan.runtime.run import PartitionRun


def new(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Make a state."""
    table: NewState = instruction.detail
    frame.slots[instruction.outs[0]] = run.host.new_state(table.component, table.kind)
    return True


def fork(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Fork a state."""
    frame.slots[instruction.outs[0]] = run.host.fork(frame.slots[instruction.args[0]])
    return True


def const(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Fill a slot with a constant."""
    frame.slots[instruction.outs[0]] = instruction.detail
    return True


def take(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Take one element."""
    slots = frame.slots
    slots[instruction.outs[0]] = slots[instruction.args[0]][slots[instruction.args[1]]]
    return True


def field(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Take one field."""
    slots = frame.slots
    slots[instruction.outs[0]] = getattr(slots[instruction.args[0]], str(instruction.detail))
    return True


def count(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Count the items of an each."""
    frame.slots[instruction.outs[0]] = len(frame.slots[instruction.args[0]])
    return True


def emit(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Send a value to the client."""
    table: Emit = instruction.detail
    run.emissions.append((table, frame.slots[instruction.args[0]]))
    return True


_BY_OPCODE: dict[Opcode, Callable[[PartitionRun, Frame, Instruction], bool]] = {
    Opcode.NEW: new,
    Opcode.FORK: fork,
    Opcode.CONST: const,
    Opcode.TAKE: take,
    Opcode.FIELD: field,
    Opcode.COUNT: count,
    Opcode.WRITER: open_writer,
    Opcode.READER: open_reader,
    Opcode.PUT: put,
    Opcode.GET: take_next,
    Opcode.CLOSE: close_writer,
    Opcode.DETACH: detach,
    Opcode.EMIT: emit,
    Opcode.LOOP: loop,
    Opcode.WINDOWS: windows,
    Opcode.EACH: each,
    Opcode.CHOOSE: choose,
}
HANDLERS = tuple(_BY_OPCODE.get(do, const) for do in Opcode)
"""The act of every instruction, by number; a call has none and its place is never looked up."""
