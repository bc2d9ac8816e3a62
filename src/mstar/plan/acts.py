"""What the instructions do that need no op, and the table that finds them.

An act says whether it is done. One that is not has arranged to be tried again, or to be finished by its region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mstar.plan.frame import Frame
from mstar.plan.regions import choose, each, loop, windows
from mstar.plan.streams import close_writer, let_go, open_reader, open_writer, put, take_next
from mstar.plan.tables import Do, Emit, Instruction, NewState

if TYPE_CHECKING:
    from mstar.plan.run import Run


def new(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Make a state."""
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
    """Take one element."""
    slots = frame.slots
    slots[instruction.outs[0]] = slots[instruction.args[0]][slots[instruction.args[1]]]
    return True


def field(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Take one field."""
    slots = frame.slots
    slots[instruction.outs[0]] = getattr(slots[instruction.args[0]], str(instruction.detail))
    return True


def count(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Count the items of an each."""
    frame.slots[instruction.outs[0]] = len(frame.slots[instruction.args[0]])
    return True


def emit(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Send a value to the client."""
    table: Emit = instruction.detail
    run.emitted.append((table, frame.slots[instruction.args[0]]))
    return True


_BY_DO: dict[Do, Callable[[Run, Frame, Instruction], bool]] = {
    Do.NEW: new,
    Do.FORK: fork,
    Do.CONST: const,
    Do.TAKE: take,
    Do.FIELD: field,
    Do.COUNT: count,
    Do.WRITER: open_writer,
    Do.READER: open_reader,
    Do.PUT: put,
    Do.GET: take_next,
    Do.CLOSE: close_writer,
    Do.LET_GO: let_go,
    Do.EMIT: emit,
    Do.LOOP: loop,
    Do.WINDOWS: windows,
    Do.EACH: each,
    Do.CHOOSE: choose,
}
ACTS = tuple(_BY_DO.get(do, const) for do in Do)
"""The act of every instruction, by number; a call has none and its place is never looked up."""
