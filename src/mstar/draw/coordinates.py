"""Vertical coordinate assignment: aligns cells with their neighbors by least squares.

Sweeps over the columns in both directions. In each column, cells move to the weighted mean of what they are linked to;
cells that would overlap are pooled (isotonic regression), so that order and minimum distances are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mstar.draw.layering import Cell, Columns, LinkSegment

SWEEPS = 24
BOX_GAP_PX = 22
LINE_GAP_PX = 16
PIPE_EXIT_PX = 14
"""Space below a cell for the first pipe that leaves it."""
PIPE_ENTRY_PX = 30
"""Space above a cell for the first pipe that enters it, with its label."""
PIPE_TRACK_PX = 10
"""Space for each further pipe."""


def space_below(cell: Cell) -> int:
    """Return the height that the pipes at the bottom of a cell need."""
    return PIPE_EXIT_PX + PIPE_TRACK_PX * (len(cell.bottom) - 1) if cell.bottom else 0


def space_above(cell: Cell) -> int:
    """Return the height that the pipes at the top of a cell need."""
    return PIPE_ENTRY_PX + PIPE_TRACK_PX * (len(cell.top) - 1) if cell.top else 0


def assign_y(columns: Columns) -> None:
    """Set `y` of every cell. The topmost is at 0."""
    pulls: defaultdict[str, list[tuple[str, float, float, bool]]] = defaultdict(list)
    for segment in dict.fromkeys(segment for _, chain in columns.chains for segment in chain):
        tail, head = columns.cells[segment.tail], columns.cells[segment.head]
        shift, weight = tail.right[segment.out] - head.left[segment.into], _weight(tail, head, segment)
        pulls[head.id].append((tail.id, shift, weight, True))
        pulls[tail.id].append((head.id, -shift, weight, False))
    for column in columns.order:
        at = 0.0
        for above, name in zip([None, *column], column, strict=False):
            cell = columns.cells[name]
            at += 0 if above is None else columns.cells[above].h + _min_gap(columns.cells[above], cell)
            cell.y = at
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        is_final = sweep >= SWEEPS - 4
        for column in columns.order if forward else reversed(columns.order):
            _place_column([columns.cells[name] for name in column], columns, pulls, None if is_final else forward)
    for cell in columns.cells.values():
        cell.y = round(cell.y)
    top = min((cell.y - space_above(cell) for cell in columns.cells.values()), default=0)
    for cell in columns.cells.values():
        cell.y -= top


def _weight(tail: Cell, head: Cell, segment: LinkSegment) -> float:
    # Long links should be straight, and so should the only link of a box.
    return (4.0 if tail.has_no_height and head.has_no_height else 1.0) + (1.0 if segment.out == "" else 0.0)


def _min_gap(above: Cell, below: Cell) -> int:
    minimum = LINE_GAP_PX if above.has_no_height or below.has_no_height else BOX_GAP_PX
    return max(minimum, space_below(above) + space_above(below) + 12)


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
        targets = [
            (columns.cells[name].y + shift, weight)
            for name, shift, weight, is_tail in pulls.get(cell.id, ())
            if forward is None or is_tail == forward
        ]
        total = sum(weight for _, weight in targets)
        target = sum(position * weight for position, weight in targets) / total if total else cell.y
        if cell.id not in pulls and groups:
            target = groups[-1][0] + offset  # no links: directly below the previous cell
        # Pool neighbors that would overlap: together they move to their weighted mean.
        groups.append((target - offset, total or 0.05, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (first, first_weight, first_count), (second, second_weight, second_count) = groups[-2], groups.pop()
            weight = first_weight + second_weight
            mean = (first * first_weight + second * second_weight) / weight
            groups[-1] = (mean, weight, first_count + second_count)
    positions = [position for position, _, count in groups for _ in range(count)]
    for cell, position, start in zip(cells, positions, offsets, strict=True):
        cell.y = position + start
