"""Where the cells of a sheet stand from top to bottom.

Each cell wants to be level with what it is linked to. Column by column, to and fro, the cells get the places that
are nearest to what they want in the sense of least squares, with their order and their distances kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mstar.draw.ranks import Cell, Columns, Hop

ROUNDS = 24
BETWEEN_BOXES, BETWEEN_LINES = 22, 16
DROP_OUT, DROP_IN, DROP_TRACK = 14, 30, 10
"""Room under a cell for the pipe that leaves it, over one for the pipe (with its label) that enters, for one more."""


def room_below(cell: Cell) -> int:
    """Free height that the pipes leaving a cell's bottom need."""
    return DROP_OUT + DROP_TRACK * (len(cell.bottom) - 1) if cell.bottom else 0


def room_above(cell: Cell) -> int:
    """Free height that the pipes entering a cell's top need."""
    return DROP_IN + DROP_TRACK * (len(cell.top) - 1) if cell.top else 0


def stand(columns: Columns) -> None:
    """Set `y` of every cell; the highest thing is at 0."""
    pulls: defaultdict[str, list[tuple[str, float, float, bool]]] = defaultdict(list)
    for hop in dict.fromkeys(hop for _, chain in columns.chains for hop in chain):
        tail, head = columns.cells[hop.tail], columns.cells[hop.head]
        shift, weight = tail.right[hop.out] - head.left[hop.into], _weight(tail, head, hop)
        pulls[head.id].append((tail.id, shift, weight, True))
        pulls[tail.id].append((head.id, -shift, weight, False))
    for column in columns.order:
        at = 0.0
        for above, name in zip([None, *column], column, strict=False):
            cell = columns.cells[name]
            at += 0 if above is None else columns.cells[above].h + _distance(columns.cells[above], cell)
            cell.y = at
    for turn in range(ROUNDS):
        forward = turn % 2 == 0
        both = turn >= ROUNDS - 4
        for column in columns.order if forward else reversed(columns.order):
            _settle([columns.cells[name] for name in column], columns, pulls, None if both else forward)
    for cell in columns.cells.values():
        cell.y = round(cell.y)
    top = min((cell.y - room_above(cell) for cell in columns.cells.values()), default=0)
    for cell in columns.cells.values():
        cell.y -= top


def _weight(tail: Cell, head: Cell, hop: Hop) -> float:
    # Long links should run straight; so should a box's only link.
    return (4.0 if tail.is_thin and head.is_thin else 1.0) + (1.0 if hop.out == "" else 0.0)


def _distance(above: Cell, below: Cell) -> int:
    least = BETWEEN_LINES if above.is_thin or below.is_thin else BETWEEN_BOXES
    return max(least, room_below(above) + room_above(below) + 12)


def _settle(
    cells: Sequence[Cell],
    columns: Columns,
    pulls: dict[str, list[tuple[str, float, float, bool]]],
    forward: bool | None,
) -> None:
    offset = 0.0
    offsets: list[float] = []
    groups: list[tuple[float, float, int]] = []
    for at, cell in enumerate(cells):
        if at:
            offset += cells[at - 1].h + _distance(cells[at - 1], cell)
        offsets.append(offset)
        wants = [
            (columns.cells[name].y + shift, weight)
            for name, shift, weight, is_tail in pulls.get(cell.id, ())
            if forward is None or is_tail == forward
        ]
        total = sum(weight for _, weight in wants)
        want = sum(place * weight for place, weight in wants) / total if total else cell.y
        if cell.id not in pulls and groups:
            want = groups[-1][0] + offset  # nothing pulls it: right under its neighbour
        # Pool neighbours that would come too close: together they stand where all of them are content on average.
        groups.append((want - offset, total or 0.05, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (one, heavy, many), (two, light, few) = groups[-2], groups.pop()
            groups[-1] = ((one * heavy + two * light) / (heavy + light), heavy + light, many + few)
    placed = [place for place, _, count in groups for _ in range(count)]
    for cell, place, start in zip(cells, placed, offsets, strict=True):
        cell.y = place + start
