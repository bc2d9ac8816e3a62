"""Where the cells of a sheet stand from top to bottom.

Each cell wants to be level with what it is linked to. Column by column, to and fro, the cells get the places that
are nearest to what they want in the sense of least squares, with their order and their distances kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mstar.draw.layering import Cell, Columns, LinkSegment

SWEEPS = 24
BOX_GAP_PX, LINE_GAP_PX = 22, 16
PIPE_EXIT_PX, PIPE_ENTRY_PX, PIPE_TRACK_PX = 14, 30, 10
"""Room under a cell for the pipe that leaves it, over one for the pipe (with its label) that enters, for one more."""


def space_below(cell: Cell) -> int:
    """Free height that the pipes leaving a cell's bottom need."""
    return PIPE_EXIT_PX + PIPE_TRACK_PX * (len(cell.bottom) - 1) if cell.bottom else 0


def space_above(cell: Cell) -> int:
    """Free height that the pipes entering a cell's top need."""
    return PIPE_ENTRY_PX + PIPE_TRACK_PX * (len(cell.top) - 1) if cell.top else 0


def assign_y(columns: Columns) -> None:
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
            at += 0 if above is None else columns.cells[above].h + _min_gap(columns.cells[above], cell)
            cell.y = at
    for turn in range(SWEEPS):
        forward = turn % 2 == 0
        both = turn >= SWEEPS - 4
        for column in columns.order if forward else reversed(columns.order):
            _place_column([columns.cells[name] for name in column], columns, pulls, None if both else forward)
    for cell in columns.cells.values():
        cell.y = round(cell.y)
    top = min((cell.y - space_above(cell) for cell in columns.cells.values()), default=0)
    for cell in columns.cells.values():
        cell.y -= top


def _weight(tail: Cell, head: Cell, hop: LinkSegment) -> float:
    # Long links should run straight; so should a box's only link.
    return (4.0 if tail.has_no_height and head.has_no_height else 1.0) + (1.0 if hop.out == "" else 0.0)


def _min_gap(above: Cell, below: Cell) -> int:
    least = LINE_GAP_PX if above.has_no_height or below.has_no_height else BOX_GAP_PX
    return max(least, space_below(above) + space_above(below) + 12)


def _place_column(
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
            offset += cells[at - 1].h + _min_gap(cells[at - 1], cell)
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
