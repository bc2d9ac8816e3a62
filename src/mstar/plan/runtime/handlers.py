"""Instruction handlers: the opcodes that need no op, and their dispatch table.

A handler returns True when its instruction is done. One that returns False has arranged to be retried, or its region
finishes the instruction later.
"""

from __future__ import annotations

from collections.abc import Callable

from mstar.plan.runtime.frame import Frame, Run
from mstar.plan.runtime.regions import choose, each, loop, windows
from mstar.plan.runtime.streams import close_writer, detach, open_reader, open_writer, put, take_next
from mstar.plan.tables import Emit, Instruction, NewState, Opcode


def new(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Create a state."""
    table: NewState = instruction.detail
    frame.slots[instruction.outs[0]] = run.host.new_state(table.component, table.kind)
    return True


def fork(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Fork a state."""
    frame.slots[instruction.outs[0]] = run.host.fork(frame.slots[instruction.args[0]])
    return True


def const(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Fill a slot with a constant."""
    frame.slots[instruction.outs[0]] = instruction.detail
    return True


def take(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Index into a list."""
    slots = frame.slots
    slots[instruction.outs[0]] = slots[instruction.args[0]][slots[instruction.args[1]]]
    return True


def field(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Read an attribute."""
    slots = frame.slots
    slots[instruction.outs[0]] = getattr(slots[instruction.args[0]], str(instruction.detail))
    return True


def count(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Count the items of an `each` region."""
    frame.slots[instruction.outs[0]] = len(frame.slots[instruction.args[0]])
    return True


def emit(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Queue an emission for the client."""
    table: Emit = instruction.detail
    run.emissions.append((table, frame.slots[instruction.args[0]]))
    return True


_BY_OPCODE: dict[Opcode, Callable[[Run, Frame, Instruction], bool]] = {
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
HANDLERS = tuple(_BY_OPCODE.get(opcode, const) for opcode in Opcode)
"""Handler by opcode number. CALL has none: its entry is never looked up."""
