"""Layout of one subgraph and its nested subgraphs, in local coordinates.

1. Assign columns.
2. Lay out nested subgraphs, to know their sizes and ports.
3. Reduce crossings, and order the ports.
4. Assign y, then tracks and x.
5. Route the links.

Colors and fonts are applied in `svg`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from mstar.draw.coordinates import assign_y, space_below
from mstar.draw.edge_routing import BACK_TRACK_PX, RoutedLink, Tracks, route_links
from mstar.draw.elements import Link, Subgraph
from mstar.draw.layering import Cell, Columns, assign_columns, in_port, is_border_port, out_port, reduce_crossings
from mstar.draw.text_size import CAPTION, LABEL, PORT_STEP_PX, item_size, text_width

CAPTION_BAND_PX = 30
PADDING_PX = 12
COLUMN_GAP_PX = 30
BORDER_GAP_PX = 20
EMPTY_GAP_PX = 12
TRACK_PX = 10


@dataclass(frozen=True, slots=True)
class SubgraphLayout:
    """A subgraph with coordinates relative to its top left corner."""

    subgraph: Subgraph
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


def lay_out(subgraph: Subgraph) -> SubgraphLayout:
    """Lay out a subgraph and all nested subgraphs."""
    columns = assign_columns(subgraph)
    layouts = {item.id: lay_out(item.subgraph) for item in subgraph.items.values() if item.subgraph is not None}
    if subgraph.kind == "choose":
        widest = max(layout.w for layout in layouts.values())
        layouts = {name: _widen(layout, widest) for name, layout in layouts.items()}
    _size(columns, layouts)
    reduce_crossings(columns)
    _spread_ports(columns)
    assign_y(columns)
    tracks = _assign_tracks(subgraph, columns)
    lowest = max((cell.y + cell.h + space_below(cell) for cell in columns.cells.values()), default=0)
    width, top = _assign_x(columns, subgraph, tracks)
    caption_x, width = _fit_caption(subgraph, top, width)
    for name in columns.order[-1]:
        columns.cells[name].x = width
    for cell in columns.cells.values():
        cell.y = int(cell.y) + CAPTION_BAND_PX
    height = CAPTION_BAND_PX + int(lowest) + PADDING_PX + BACK_TRACK_PX * _assign_back_tracks(columns, tracks)
    routes = route_links(subgraph, columns, tracks, height)
    boxes = tuple(cell for cell in columns.cells.values() if not cell.has_no_height)
    ports = [cell for cell in columns.cells.values() if cell.item is not None and cell.item.shape == "port"]
    return SubgraphLayout(
        subgraph,
        width,
        height,
        caption_x,
        boxes,
        layouts,
        tuple(routes),
        left={cell.id: int(cell.y) for cell in ports if cell.rank == 0},
        right={cell.id: int(cell.y) for cell in ports if cell.rank > 0},
        top=top,
        bottom=tracks.exit_tracks,
    )


def _widen(layout: SubgraphLayout, width: int) -> SubgraphLayout:
    """Move the right border, and extend the links that end there."""
    routes = [
        replace(routed, path=(*routed.path, (width, layout.right[routed.link.head])))
        if routed.link.head in layout.right
        else routed
        for routed in layout.routes
    ]
    return replace(layout, w=width, routes=tuple(routes))


def _size(columns: Columns, layouts: dict[str, SubgraphLayout]) -> None:
    outs: defaultdict[str, set[str]] = defaultdict(set)
    ins: defaultdict[str, set[str]] = defaultdict(set)
    for link in [*(link for link, _ in columns.chains), *columns.back_links, *columns.border_links]:
        outs[link.tail].add(out_port(link))
        ins[link.head].add(in_port(link))
    for cell in columns.cells.values():
        if cell.id in layouts:
            layout = layouts[cell.id]
            cell.w, cell.h = layout.w, layout.h
            cell.left, cell.right, cell.top, cell.bottom = layout.left, layout.right, layout.top, layout.bottom
        elif cell.item is not None and not cell.has_no_height:
            cell.w, cell.h = item_size(cell.item, max(len(outs[cell.id]), len(ins[cell.id])))
    for link in columns.vertical_pipes:
        tail, head = columns.cells[link.tail], columns.cells[link.head]
        if tail.id not in layouts:
            tail.bottom[link.source] = tail.w // 2
        if head.id not in layouts:
            head.top[link.target] = head.w // 2


def _spread_ports(columns: Columns) -> None:
    """Order the ports of boxes by their neighbors, so that links do not cross at a box."""
    index = {name: float(at) for column in columns.order for at, name in enumerate(column)}
    outs: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    ins: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for _, chain in columns.chains:
        for segment in chain:
            tail, head = columns.cells[segment.tail], columns.cells[segment.head]
            level = head.left[segment.into] / (head.h + 1) if segment.into in head.left else 0.5
            outs[tail.id].setdefault(segment.out, []).append(index[head.id] + level)
            level = tail.right[segment.out] / (tail.h + 1) if segment.out in tail.right else 0.5
            ins[head.id][segment.into] = index[tail.id] + level
    below = float(len(columns.cells))
    for link in columns.back_links:
        # A back link leaves and enters lowest, because it runs along the bottom.
        outs[link.tail].setdefault(out_port(link), []).append(below)
        ins[link.head].setdefault(in_port(link), below)
    for link in columns.border_links:
        outs[link.tail].setdefault(out_port(link), []).append(below)
        ins[link.head].setdefault(in_port(link), -1.0)
    for cell in columns.cells.values():
        if cell.item is not None and cell.item.shape != "frame":
            levels = {key: sum(values) / len(values) for key, values in outs[cell.id].items()}
            cell.right = _space_evenly(cell, levels)
            cell.left = _space_evenly(cell, ins[cell.id])


def _space_evenly(cell: Cell, levels: dict[str, float]) -> dict[str, int]:
    keys = sorted(levels, key=lambda key: (levels[key], key))
    if cell.has_no_height:
        return dict.fromkeys(keys, 0)
    step = PORT_STEP_PX if len(keys) < 2 else min(PORT_STEP_PX, (cell.h - 12) / (len(keys) - 1))
    first = cell.h / 2 - step * (len(keys) - 1) / 2
    return {key: round(first + at * step) for at, key in enumerate(keys)}


def _assign_tracks(subgraph: Subgraph, columns: Columns) -> Tracks:
    """Assign vertical runs to the gaps between columns."""
    tracks = Tracks([[] for _ in range(len(columns.order) + 1)])
    for at, link in enumerate(subgraph.links):
        if is_border_port(subgraph.items[link.head]):
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
        elif is_border_port(subgraph.items[link.tail]):
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
        elif link.is_back:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((at, "leave"))
            tracks.gaps[columns.cells[link.head].rank].append((at, "enter"))
    for link in columns.vertical_pipes:
        column = columns.order[columns.cells[link.tail].rank]
        if column.index(link.head) != column.index(link.tail) + 1:
            tracks.gaps[columns.cells[link.tail].rank + 1].append((subgraph.links.index(link), "leave"))
    return tracks


def _assign_x(columns: Columns, subgraph: Subgraph, tracks: Tracks) -> tuple[int, dict[str, int]]:
    """Set `x` of every cell and track. Returns the width, and the ports in the top border."""
    starts: list[tuple[Link, Cell]] = [(link, columns.cells[chain[0].tail]) for link, chain in columns.chains]
    starts += [(link, columns.cells[link.tail]) for link in columns.back_links]
    is_top = subgraph.kind == "walk"
    x, last = 0, len(columns.order) - 1
    top: dict[str, int] = {}
    for rank, column in enumerate(columns.order):
        cells = [columns.cells[name] for name in column]
        if rank:
            labeled = [(link, cell) for link, cell in starts if link.label and cell.rank == rank - 1]
            ends = [cell.x + cell.w + text_width(link.label, LABEL) + 8 for link, cell in labeled]
            used = any(columns.cells[segment.head].rank == rank for _, chain in columns.chains for segment in chain)
            is_border = rank in (1, last)
            minimum = BORDER_GAP_PX if used and is_border else COLUMN_GAP_PX if used else 0 if is_top else EMPTY_GAP_PX
            x = _place_tracks(tracks, rank, max(x, *ends, x), minimum, subgraph, top)
        width = max((cell.w for cell in cells), default=0)
        for cell in cells:
            cell.x = x + (0 if cell.left or cell.item is None or cell.item.shape == "frame" else width - cell.w)
        x += width
        tracks.column_right.append(x)
    return x, top


def _place_tracks(tracks: Tracks, rank: int, start: int, minimum: int, subgraph: Subgraph, top: dict[str, int]) -> int:
    """Set `x` of each track in a gap. Returns where the next column starts."""
    tracks.curve_left.append(start)
    at = start + TRACK_PX
    for index, end in tracks.gaps[rank]:
        link = subgraph.links[index]
        tracks.x[index, end] = at
        if end == "enter" and is_border_port(subgraph.items[link.tail]):
            top[link.tail] = at
            # The label of the pipe is beside it, above the frame.
            at += max(0, text_width(link.value, LABEL) + 12 - TRACK_PX) if len(tracks.gaps[rank]) > 1 else 0
        elif end == "leave" and is_border_port(subgraph.items[link.head]):
            tracks.exit_tracks[link.head] = at
        at += TRACK_PX
    return max(start + minimum, at + (TRACK_PX + minimum) // 2 if tracks.gaps[rank] else 0)


def _fit_caption(subgraph: Subgraph, top: dict[str, int], width: int) -> tuple[int, int]:
    """Return the x of a caption that avoids the pipes from above, and the width that the frame needs."""
    need = text_width(subgraph.caption, CAPTION, is_bold=True)
    start = PADDING_PX
    for x in sorted(top.values()):
        if x - 8 - start >= need:
            break
        start = x + 8
    else:
        width = max(width, start + need + PADDING_PX)
    return start, width


def _assign_back_tracks(columns: Columns, tracks: Tracks) -> int:
    """Assign each back link a horizontal track below everything else. Returns the number of tracks."""
    tracks_below: list[list[tuple[int, int]]] = []
    links = sorted(columns.back_links, key=lambda link: columns.cells[link.tail].rank - columns.cells[link.head].rank)
    for link in links:
        left, right = columns.cells[link.head].rank, columns.cells[link.tail].rank + 1
        free = [at for at, spans in enumerate(tracks_below) if all(right < a or b < left for a, b in spans)]
        if not free:
            free = [len(tracks_below)]
            tracks_below.append([])
        tracks_below[free[0]].append((left, right))
        tracks.back_track[id(link)] = free[0]
    return len(tracks_below)
