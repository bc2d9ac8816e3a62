"""Straight-line code: bodies whose calls can only run one after another.

Most loops are of this kind (decode, then check for the end token). Their order is known at compile time, so a step
needs no dependency counters: each call has the segment that follows it. `python -m bench loop-step` measures a step.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import BodyTable, Instruction, Opcode, Segment

NON_BLOCKING_OPCODES = frozenset(
    {
        Opcode.CALL,
        Opcode.NEW,
        Opcode.FORK,
        Opcode.CONST,
        Opcode.TAKE,
        Opcode.FIELD,
        Opcode.COUNT,
        Opcode.PUT,
        Opcode.EMIT,
    }
)
"""Opcodes that never block, except a put into a full stream: then the frame falls back to counters."""


def compile_straight_line(table: BodyTable) -> BodyTable:
    """Add segments to a table if its body is straight-line code."""
    if table.remote_inputs or any(i.sends or i.opcode not in NON_BLOCKING_OPCODES for i in table.instructions):
        return table
    order = _order(table)
    calls = [index for index in order if table.instructions[index].opcode is Opcode.CALL]
    if not calls or not _is_sequential(table, calls):
        return table
    instructions = list(table.instructions)
    pending: list[Instruction] = []
    call: Instruction | None = None
    for index in reversed(order):
        if instructions[index].opcode is Opcode.CALL:
            call = instructions[index] = replace(
                instructions[index], next_segment=Segment(tuple(reversed(pending)), call)
            )
            pending = []
        else:
            pending.append(instructions[index])
    first = Segment(tuple(reversed(pending)), call)
    return replace(table, instructions=tuple(instructions), first_segment=first, order=tuple(order))


def _order(table: BodyTable) -> list[int]:
    """Topological order with calls as late as possible."""
    pending, ready, order = list(table.pending), sorted(table.entry), list[int]()
    while ready:
        not_calls = [index for index in ready if table.instructions[index].opcode is not Opcode.CALL]
        index = not_calls[0] if not_calls else ready[0]
        ready.remove(index)
        order.append(index)
        for dependent in table.instructions[index].dependents:
            pending[dependent] -= 1
            if not pending[dependent]:
                ready.append(dependent)
    return order


def _is_sequential(table: BodyTable, calls: list[int]) -> bool:
    return all(later in _reachable(table, earlier) for earlier, later in pairwise(calls))


def _reachable(table: BodyTable, start: int) -> set[int]:
    reachable: set[int] = set()
    todo = [start]
    while todo:
        for dependent in table.instructions[todo.pop()].dependents:
            if dependent not in reachable:
                reachable.add(dependent)
                todo.append(dependent)
    return reachable


def resume_with_counters(frame: Frame, blocked: int) -> list[tuple[Frame, int]]:
    """Switch a frame to counters at a blocked instruction; returns the other instructions that can run."""
    table = frame.table
    done = table.order[: table.order.index(blocked)]
    pending = [*table.pending]
    for index in done:
        for dependent in table.instructions[index].dependents:
            pending[dependent] -= 1
    frame.pending = pending
    frame.remaining = table.count - len(done)
    return [(frame, index) for index in table.order[len(done) + 1 :] if not pending[index]]
