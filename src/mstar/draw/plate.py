"""Lays out one sheet, with the sheets inside it, in coordinates of its own.

The order of work: columns, then the frames inside (their size and ports must be known), then the order in each
column, ports, heights, widths and routes. Nothing here knows colours or fonts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from mstar.draw.heights import room_below, stand
from mstar.draw.measure import CAPTION, LABEL, PORT_STEP, item_size, text_width
from mstar.draw.parts import Link, Sheet
from mstar.draw.ranks import Cell, Columns, arrange, is_edgewise, key_into, key_out, untangle
from mstar.draw.route import Routed, Tracks, route

CAPTION_BAND, PAD, LANE = 30, 12, 10
GAP, BORDER_GAP, EMPTY_GAP, TRACK = 30, 20, 12, 10


@dataclass(frozen=True, slots=True)
class Plate:
    """A sheet with coordinates, from its own top left corner."""

    sheet: Sheet
    w: int
    h: int
    caption_x: int
    cells: tuple[Cell, ...]
    plates: dict[str, Plate]
    routes: tuple[Routed, ...]
    left: dict[str, int]
    right: dict[str, int]
    top: dict[str, int]
    bottom: dict[str, int]


def lay_out(sheet: Sheet) -> Plate:
    """The layout of a sheet and of all sheets inside it."""
    columns = arrange(sheet)
    plates = {item.id: lay_out(item.inside) for item in sheet.items.values() if item.inside is not None}
    if sheet.kind == "choose":
        widest = max(plate.w for plate in plates.values())
        plates = {name: _widened(plate, widest) for name, plate in plates.items()}
    _size(columns, plates)
    untangle(columns)
    _spread_ports(columns)
    stand(columns)
    tracks = _tracks(sheet, columns)
    lowest = max((cell.y + cell.h + room_below(cell) for cell in columns.cells.values()), default=0)
    width, top = _columns_x(columns, sheet, tracks)
    caption_x, width = _fit_caption(sheet, top, width)
    for name in columns.order[-1]:
        columns.cells[name].x = width
    for cell in columns.cells.values():
        cell.y = int(cell.y) + CAPTION_BAND
    height = CAPTION_BAND + int(lowest) + PAD + LANE * _lanes(columns, tracks)
    routes = route(sheet, columns, tracks, height)
    drawn = tuple(cell for cell in columns.cells.values() if not cell.is_thin)
    ports = [cell for cell in columns.cells.values() if cell.item is not None and cell.item.shape == "port"]
    return Plate(
        sheet,
        width,
        height,
        caption_x,
        drawn,
        plates,
        tuple(routes),
        left={cell.id: int(cell.y) for cell in ports if cell.rank == 0},
        right={cell.id: int(cell.y) for cell in ports if cell.rank > 0},
        top=top,
        bottom=tracks.leaving,
    )


def _widened(plate: Plate, width: int) -> Plate:
    """The same plate with its right border further right, and what ends there drawn out to it."""
    routes = [
        replace(routed, path=(*routed.path, (width, plate.right[routed.link.head])))
        if routed.link.head in plate.right
        else routed
        for routed in plate.routes
    ]
    return replace(plate, w=width, routes=tuple(routes))


def _size(columns: Columns, plates: dict[str, Plate]) -> None:
    outs: defaultdict[str, set[str]] = defaultdict(set)
    ins: defaultdict[str, set[str]] = defaultdict(set)
    for link in [*(link for link, _ in columns.chains), *columns.backs, *columns.upright]:
        outs[link.tail].add(key_out(link))
        ins[link.head].add(key_into(link))
    for cell in columns.cells.values():
        if cell.id in plates:
            plate = plates[cell.id]
            cell.w, cell.h = plate.w, plate.h
            cell.left, cell.right, cell.top, cell.bottom = plate.left, plate.right, plate.top, plate.bottom
        elif cell.item is not None and not cell.is_thin:
            cell.w, cell.h = item_size(cell.item, max(len(outs[cell.id]), len(ins[cell.id])))
    for link in columns.drops:
        tail, head = columns.cells[link.tail], columns.cells[link.head]
        if tail.id not in plates:
            tail.bottom[link.source] = tail.w // 2
        if head.id not in plates:
            head.top[link.target] = head.w // 2


def _spread_ports(columns: Columns) -> None:
    """Ports of plain boxes, in the order of what they are linked to, so that links do not cross at the box."""
    place = {name: float(at) for column in columns.order for at, name in enumerate(column)}
    outs: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    ins: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for _, chain in columns.chains:
        for hop in chain:
            tail, head = columns.cells[hop.tail], columns.cells[hop.head]
            level = head.left[hop.into] / (head.h + 1) if hop.into in head.left else 0.5
            outs[tail.id].setdefault(hop.out, []).append(place[head.id] + level)
            level = tail.right[hop.out] / (tail.h + 1) if hop.out in tail.right else 0.5
            ins[head.id][hop.into] = place[tail.id] + level
    below = float(len(columns.cells))
    for link in columns.backs:
        # A link that goes around leaves and enters lowest, as its way is along the bottom.
        outs[link.tail].setdefault(key_out(link), []).append(below)
        ins[link.head].setdefault(key_into(link), below)
    for link in columns.upright:
        outs[link.tail].setdefault(key_out(link), []).append(below)
        ins[link.head].setdefault(key_into(link), -1.0)
    for cell in columns.cells.values():
        if cell.item is not None and cell.item.shape != "frame":
            levels = {key: sum(found) / len(found) for key, found in outs[cell.id].items()}
            cell.right = _even(cell, levels)
            cell.left = _even(cell, ins[cell.id])


def _even(cell: Cell, levels: dict[str, float]) -> dict[str, int]:
    keys = sorted(levels, key=lambda key: (levels[key], key))
    if cell.is_thin:
        return dict.fromkeys(keys, 0)
    step = PORT_STEP if len(keys) < 2 else min(PORT_STEP, (cell.h - 12) / (len(keys) - 1))
    first = cell.h / 2 - step * (len(keys) - 1) / 2
    return {key: round(first + at * step) for at, key in enumerate(keys)}


def _tracks(sheet: Sheet, columns: Columns) -> Tracks:
    """Which links run straight down or up between which columns."""
    tracks = Tracks([[] for _ in range(len(columns.order) + 1)])
    for at, link in enumerate(sheet.links):
        if is_edgewise(sheet.items[link.head]):
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
        elif is_edgewise(sheet.items[link.tail]):
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
        elif link.is_back:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
    for link in columns.drops:
        column = columns.order[columns.cells[link.tail].rank]
        if column.index(link.head) != column.index(link.tail) + 1:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((sheet.links.index(link), "leave"))
    return tracks


def _columns_x(columns: Columns, sheet: Sheet, tracks: Tracks) -> tuple[int, dict[str, int]]:
    """Set `x` of every cell and of every track; the total width, and the ports in the top border."""
    starts: list[tuple[Link, Cell]] = [(link, columns.cells[chain[0].tail]) for link, chain in columns.chains]
    starts += [(link, columns.cells[link.tail]) for link in columns.backs]
    is_top = sheet.kind == "walk"
    x, last = 0, len(columns.order) - 1
    top: dict[str, int] = {}
    for rank, column in enumerate(columns.order):
        here = [columns.cells[name] for name in column]
        if rank:
            labelled = [(link, cell) for link, cell in starts if link.label and cell.rank == rank - 1]
            ends = [cell.x + cell.w + text_width(link.label, LABEL) + 8 for link, cell in labelled]
            used = any(columns.cells[hop.head].rank == rank for _, chain in columns.chains for hop in chain)
            is_border = rank in (1, last)
            least = BORDER_GAP if used and is_border else GAP if used else 0 if is_top else EMPTY_GAP
            x = _gap(tracks, rank, max(x, *ends, x), least, sheet, top)
        wide = max((cell.w for cell in here), default=0)
        for cell in here:
            cell.x = x + (0 if cell.left or cell.item is None or cell.item.shape == "frame" else wide - cell.w)
        x += wide
        tracks.column_right.append(x)
    return x, top


def _gap(tracks: Tracks, rank: int, start: int, least: int, sheet: Sheet, top: dict[str, int]) -> int:
    """Give each track between two columns its x; where the next column begins."""
    tracks.curve_left.append(start)
    at = start + TRACK
    for number, end in tracks.gaps[rank]:
        link = sheet.links[number]
        tracks.x[number, end] = at
        if end == "enter" and is_edgewise(sheet.items[link.tail]):
            top[link.tail] = at
            # The label of the pipe stands beside it, above the frame.
            at += max(0, text_width(link.value, LABEL) + 12 - TRACK) if len(tracks.gaps[rank]) > 1 else 0
        elif end == "leave" and is_edgewise(sheet.items[link.head]):
            tracks.leaving[link.head] = at
        at += TRACK
    return max(start + least, at + (TRACK + least) // 2 if tracks.gaps[rank] else 0)


def _fit_caption(sheet: Sheet, top: dict[str, int], width: int) -> tuple[int, int]:
    """Where a frame's caption fits between the pipes that come in from above, and how wide the frame must be."""
    need = text_width(sheet.caption, CAPTION, is_bold=True)
    start = PAD
    for x in sorted(top.values()):
        if x - 8 - start >= need:
            break
        start = x + 8
    else:
        width = max(width, start + need + PAD)
    return start, width


def _lanes(columns: Columns, tracks: Tracks) -> int:
    """Give each link that goes around a lane under everything else; how many lanes there are."""
    lanes: list[list[tuple[int, int]]] = []
    links = sorted(columns.backs, key=lambda link: columns.cells[link.tail].rank - columns.cells[link.head].rank)
    for link in links:
        left, right = columns.cells[link.head].rank, columns.cells[link.tail].rank + 1
        free = [at for at, lane in enumerate(lanes) if all(right < a or b < left for a, b in lane)]
        if not free:
            free = [len(lanes)]
            lanes.append([])
        lanes[free[0]].append((left, right))
        tracks.lane[id(link)] = free[0]
    return len(lanes)
