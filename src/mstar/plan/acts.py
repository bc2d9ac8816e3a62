"""What the instructions do that need no op, and the table that finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mstar.plan.frame import Frame
from mstar.plan.regions import choose, each, loop, windows
from mstar.plan.streams import close_writer, let_go, open_reader, open_writer, put, take_next
from mstar.plan.tables import Do, Emit, Instruction, NewState

if TYPE_CHECKING:
    from mstar.plan.run import Run


def new(run: Run, frame: Frame, instruction: Instruction) -> None:
    table = instruction.detail
    assert isinstance(table, NewState)
    frame.slots[instruction.outs[0]] = run.host.new_state(table.component, table.kind)
    run.finish(frame, instruction)


def fork(run: Run, frame: Frame, instruction: Instruction) -> None:
    frame.slots[instruction.outs[0]] = run.host.fork(frame.slots[instruction.args[0]])
    run.finish(frame, instruction)


def const(run: Run, frame: Frame, instruction: Instruction) -> None:
    frame.slots[instruction.outs[0]] = instruction.detail
    run.finish(frame, instruction)


def take(run: Run, frame: Frame, instruction: Instruction) -> None:
    slots = frame.slots
    slots[instruction.outs[0]] = slots[instruction.args[0]][slots[instruction.args[1]]]
    run.finish(frame, instruction)


def field(run: Run, frame: Frame, instruction: Instruction) -> None:
    slots = frame.slots
    slots[instruction.outs[0]] = getattr(slots[instruction.args[0]], str(instruction.detail))
    run.finish(frame, instruction)


def count(run: Run, frame: Frame, instruction: Instruction) -> None:
    frame.slots[instruction.outs[0]] = len(frame.slots[instruction.args[0]])
    run.finish(frame, instruction)


def emit(run: Run, frame: Frame, instruction: Instruction) -> None:
    table = instruction.detail
    assert isinstance(table, Emit)
    run.emitted.append((table, frame.slots[instruction.args[0]]))
    run.finish(frame, instruction)


ACTS: dict[Do, Callable[[Run, Frame, Instruction], None]] = {
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
"""The act of every instruction but a call."""
