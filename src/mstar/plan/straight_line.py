"""Straight bodies: those whose calls can only run one after another.

Most loops are of this kind (decode, then ask whether that was the end). For them the order of everything is known in
advance, so a step needs no counters: each call knows the segment that follows it. `python -m bench loop-step` measures
what a step costs.
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
"""What never waits, except a put into a full stream: then the frame goes on with counters."""


def compile_straight_line(table: BodyTable) -> BodyTable:
    """The same table with segments, if its body is straight."""
    if table.remote_inputs or any(i.sends or i.opcode not in NON_BLOCKING_OPCODES for i in table.instructions):
        return table
    order = _order(table)
    calls = [index for index in order if table.instructions[index].opcode is Opcode.CALL]
    if not calls or not _is_sequential(table, calls):
        return table
    instructions = list(table.instructions)
    acts: list[Instruction] = []
    call: Instruction | None = None
    for index in reversed(order):
        if instructions[index].opcode is Opcode.CALL:
            call = instructions[index] = replace(instructions[index], next_segment=Segment(tuple(reversed(acts)), call))
            acts = []
        else:
            acts.append(instructions[index])
    first = Segment(tuple(reversed(acts)), call)
    return replace(table, instructions=tuple(instructions), first_segment=first, order=tuple(order))


def _order(table: BodyTable) -> list[int]:
    """Everything as soon as it can be done, acts before calls."""
    pending, ready, order = list(table.pending), sorted(table.entry), list[int]()
    while ready:
        acts = [index for index in ready if table.instructions[index].opcode is not Opcode.CALL]
        index = acts[0] if acts else ready[0]
        ready.remove(index)
        order.append(index)
        for woken in table.instructions[index].dependents:
            pending[woken] -= 1
            if not pending[woken]:
                ready.append(woken)
    return order


def _is_sequential(table: BodyTable, calls: list[int]) -> bool:
    return all(later in _reachable(table, earlier) for earlier, later in pairwise(calls))


def _reachable(table: BodyTable, start: int) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        for woken in table.instructions[todo.pop()].dependents:
            if woken not in found:
                found.add(woken)
                todo.append(woken)
    return found


def resume_with_counters(frame: Frame, blocked: int) -> list[tuple[Frame, int]]:
    """Go on with counters from an act that has to wait: what else of this body can be done meanwhile."""
    table = frame.table
    done = table.order[: table.order.index(blocked)]
    pending = [*table.pending]
    for index in done:
        for woken in table.instructions[index].dependents:
            pending[woken] -= 1
    frame.pending = pending
    frame.remaining = table.count - len(done)
    return [(frame, index) for index in table.order[len(done) + 1 :] if not pending[index]]
