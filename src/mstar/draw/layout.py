"""Lays out one sheet, with the sheets inside it, in coordinates of its own.

The order of work: columns, then the frames inside (their size and ports must be known), then the order in each
column, ports, heights, widths and routes. Nothing here knows colours or fonts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from mstar.draw.coordinates import assign_y, space_below
from mstar.draw.edge_routing import RoutedLink, Tracks, route_links
from mstar.draw.elements import Link, Subgraph
from mstar.draw.layering import Cell, Columns, assign_columns, in_port, is_border_port, out_port, reduce_crossings
from mstar.draw.text_size import CAPTION, LABEL, PORT_STEP_PX, item_size, text_width

CAPTION_BAND, PADDING, LANE_HEIGHT = 30, 12, 10
GAP, BORDER_GAP, EMPTY_GAP, TRACK = 30, 20, 12, 10


@dataclass(frozen=True, slots=True)
class SubgraphLayout:
    """A sheet with coordinates, from its own top left corner."""

    sheet: Subgraph
    w: int
    h: int
    caption_x: int
    cells: tuple[Cell, ...]
    inner: dict[str, SubgraphLayout]
    routes: tuple[RoutedLink, ...]
    left: dict[str, int]
    right: dict[str, int]
    top: dict[str, int]
    bottom: dict[str, int]


def lay_out(sheet: Subgraph) -> SubgraphLayout:
    """The layout of a sheet and of all sheets inside it."""
    columns = assign_columns(sheet)
    plates = {item.id: lay_out(item.subgraph) for item in sheet.items.values() if item.subgraph is not None}
    if sheet.kind == "choose":
        widest = max(plate.w for plate in plates.values())
        plates = {name: _widen(plate, widest) for name, plate in plates.items()}
    _size(columns, plates)
    reduce_crossings(columns)
    _spread_ports(columns)
    assign_y(columns)
    tracks = _assign_tracks(sheet, columns)
    lowest = max((cell.y + cell.h + space_below(cell) for cell in columns.cells.values()), default=0)
    width, top = _assign_x(columns, sheet, tracks)
    caption_x, width = _fit_caption(sheet, top, width)
    for name in columns.order[-1]:
        columns.cells[name].x = width
    for cell in columns.cells.values():
        cell.y = int(cell.y) + CAPTION_BAND
    height = CAPTION_BAND + int(lowest) + PADDING + LANE_HEIGHT * _assign_lanes(columns, tracks)
    routes = route_links(sheet, columns, tracks, height)
    drawn = tuple(cell for cell in columns.cells.values() if not cell.has_no_height)
    ports = [cell for cell in columns.cells.values() if cell.item is not None and cell.item.shape == "port"]
    return SubgraphLayout(
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
        bottom=tracks.exit_tracks,
    )


def _widen(plate: SubgraphLayout, width: int) -> SubgraphLayout:
    """The same plate with its right border further right, and what ends there drawn out to it."""
    routes = [
        replace(routed, path=(*routed.path, (width, plate.right[routed.link.head])))
        if routed.link.head in plate.right
        else routed
        for routed in plate.routes
    ]
    return replace(plate, w=width, routes=tuple(routes))


def _size(columns: Columns, plates: dict[str, SubgraphLayout]) -> None:
    outs: defaultdict[str, set[str]] = defaultdict(set)
    ins: defaultdict[str, set[str]] = defaultdict(set)
    for link in [*(link for link, _ in columns.chains), *columns.back_links, *columns.border_links]:
        outs[link.tail].add(out_port(link))
        ins[link.head].add(in_port(link))
    for cell in columns.cells.values():
        if cell.id in plates:
            plate = plates[cell.id]
            cell.w, cell.h = plate.w, plate.h
            cell.left, cell.right, cell.top, cell.bottom = plate.left, plate.right, plate.top, plate.bottom
        elif cell.item is not None and not cell.has_no_height:
            cell.w, cell.h = item_size(cell.item, max(len(outs[cell.id]), len(ins[cell.id])))
    for link in columns.vertical_pipes:
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
    for link in columns.back_links:
        # A link that goes around leaves and enters lowest, as its way is along the bottom.
        outs[link.tail].setdefault(out_port(link), []).append(below)
        ins[link.head].setdefault(in_port(link), below)
    for link in columns.border_links:
        outs[link.tail].setdefault(out_port(link), []).append(below)
        ins[link.head].setdefault(in_port(link), -1.0)
    for cell in columns.cells.values():
        if cell.item is not None and cell.item.shape != "frame":
            levels = {key: sum(found) / len(found) for key, found in outs[cell.id].items()}
            cell.right = _space_evenly(cell, levels)
            cell.left = _space_evenly(cell, ins[cell.id])


def _space_evenly(cell: Cell, levels: dict[str, float]) -> dict[str, int]:
    keys = sorted(levels, key=lambda key: (levels[key], key))
    if cell.has_no_height:
        return dict.fromkeys(keys, 0)
    step = PORT_STEP_PX if len(keys) < 2 else min(PORT_STEP_PX, (cell.h - 12) / (len(keys) - 1))
    first = cell.h / 2 - step * (len(keys) - 1) / 2
    return {key: round(first + at * step) for at, key in enumerate(keys)}


def _assign_tracks(sheet: Subgraph, columns: Columns) -> Tracks:
    """Which links run straight down or up between which columns."""
    tracks = Tracks([[] for _ in range(len(columns.order) + 1)])
    for at, link in enumerate(sheet.links):
        if is_border_port(sheet.items[link.head]):
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
        elif is_border_port(sheet.items[link.tail]):
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
        elif link.is_back:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
    for link in columns.vertical_pipes:
        column = columns.order[columns.cells[link.tail].rank]
        if column.index(link.head) != column.index(link.tail) + 1:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((sheet.links.index(link), "leave"))
    return tracks


def _assign_x(columns: Columns, sheet: Subgraph, tracks: Tracks) -> tuple[int, dict[str, int]]:
    """Set `x` of every cell and of every track; the total width, and the ports in the top border."""
    starts: list[tuple[Link, Cell]] = [(link, columns.cells[chain[0].tail]) for link, chain in columns.chains]
    starts += [(link, columns.cells[link.tail]) for link in columns.back_links]
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
            x = _place_tracks(tracks, rank, max(x, *ends, x), least, sheet, top)
        wide = max((cell.w for cell in here), default=0)
        for cell in here:
            cell.x = x + (0 if cell.left or cell.item is None or cell.item.shape == "frame" else wide - cell.w)
        x += wide
        tracks.column_right.append(x)
    return x, top


def _place_tracks(tracks: Tracks, rank: int, start: int, least: int, sheet: Subgraph, top: dict[str, int]) -> int:
    """Give each track between two columns its x; where the next column begins."""
    tracks.curve_left.append(start)
    at = start + TRACK
    for number, end in tracks.gaps[rank]:
        link = sheet.links[number]
        tracks.x[number, end] = at
        if end == "enter" and is_border_port(sheet.items[link.tail]):
            top[link.tail] = at
            # The label of the pipe stands beside it, above the frame.
            at += max(0, text_width(link.value, LABEL) + 12 - TRACK) if len(tracks.gaps[rank]) > 1 else 0
        elif end == "leave" and is_border_port(sheet.items[link.head]):
            tracks.exit_tracks[link.head] = at
        at += TRACK
    return max(start + least, at + (TRACK + least) // 2 if tracks.gaps[rank] else 0)


def _fit_caption(sheet: Subgraph, top: dict[str, int], width: int) -> tuple[int, int]:
    """Where a frame's caption fits between the pipes that come in from above, and how wide the frame must be."""
    need = text_width(sheet.caption, CAPTION, is_bold=True)
    start = PADDING
    for x in sorted(top.values()):
        if x - 8 - start >= need:
            break
        start = x + 8
    else:
        width = max(width, start + need + PADDING)
    return start, width


def _assign_lanes(columns: Columns, tracks: Tracks) -> int:
    """Give each link that goes around a lane under everything else; how many lanes there are."""
    lanes: list[list[tuple[int, int]]] = []
    links = sorted(columns.back_links, key=lambda link: columns.cells[link.tail].rank - columns.cells[link.head].rank)
    for link in links:
        left, right = columns.cells[link.head].rank, columns.cells[link.tail].rank + 1
        free = [at for at, lane in enumerate(lanes) if all(right < a or b < left for a, b in lane)]
        if not free:
            free = [len(lanes)]
            lanes.append([])
        lanes[free[0]].append((left, right))
        tracks.lane[id(link)] = free[0]
    return len(lanes)
