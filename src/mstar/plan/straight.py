"""Straight bodies: those whose calls can only run one after another.

Most loops are of this kind (decode, then ask whether that was the end). For them the order of everything is known in
advance, so a step needs no counters: each call knows the segment that follows it. `python -m bench loop-step` measures
what a step costs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from mstar.plan.frame import Frame
from mstar.plan.tables import BodyTable, Do, Instruction, Segment

SIMPLE = frozenset({Do.CALL, Do.NEW, Do.FORK, Do.CONST, Do.TAKE, Do.FIELD, Do.COUNT, Do.PUT, Do.EMIT})
"""What never waits, except a put into a full stream: then the frame goes on with counters."""


def straighten(table: BodyTable) -> BodyTable:
    """The same table with segments, if its body is straight."""
    if table.arrivals or any(i.sends or i.do not in SIMPLE for i in table.instructions):
        return table
    order = _order(table)
    calls = [index for index in order if table.instructions[index].do is Do.CALL]
    if not calls or not _follow_one_another(table, calls):
        return table
    instructions = list(table.instructions)
    acts: list[Instruction] = []
    call: Instruction | None = None
    for index in reversed(order):
        if instructions[index].do is Do.CALL:
            call = instructions[index] = replace(instructions[index], then=Segment(tuple(reversed(acts)), call))
            acts = []
        else:
            acts.append(instructions[index])
    first = Segment(tuple(reversed(acts)), call)
    return replace(table, instructions=tuple(instructions), first=first, order=tuple(order))


def _order(table: BodyTable) -> list[int]:
    """Everything as soon as it can be done, acts before calls."""
    pending, ready, order = list(table.pending), sorted(table.entry), list[int]()
    while ready:
        acts = [index for index in ready if table.instructions[index].do is not Do.CALL]
        index = acts[0] if acts else ready[0]
        ready.remove(index)
        order.append(index)
        for woken in table.instructions[index].wakes:
            pending[woken] -= 1
            if not pending[woken]:
                ready.append(woken)
    return order


def _follow_one_another(table: BodyTable, calls: list[int]) -> bool:
    return all(later in _reached(table, earlier) for earlier, later in pairwise(calls))


def _reached(table: BodyTable, start: int) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        for woken in table.instructions[todo.pop()].wakes:
            if woken not in found:
                found.add(woken)
                todo.append(woken)
    return found


def count_from(frame: Frame, stuck: int) -> list[tuple[Frame, int]]:
    """Go on with counters from an act that has to wait: what else of this body can be done meanwhile."""
    table = frame.table
    done = table.order[: table.order.index(stuck)]
    pending = [*table.pending]
    for index in done:
        for woken in table.instructions[index].wakes:
            pending[woken] -= 1
    frame.pending = pending
    frame.left = table.count - len(done)
    return [(frame, index) for index in table.order[len(done) + 1 :] if not pending[index]]
