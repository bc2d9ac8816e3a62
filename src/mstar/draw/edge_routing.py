"""The ways of links over a laid out sheet.

Links run along rows, bend between columns, and go up or down in tracks that are kept free for them, so no way
leads through a box or a text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar.draw.coordinates import PIPE_ENTRY_PX, PIPE_EXIT_PX, PIPE_TRACK_PX
from mstar.draw.elements import Link, Subgraph
from mstar.draw.layering import Cell, Columns, LinkSegment, in_port, is_border_port, out_port

Point = tuple[int, int]
Path = tuple[tuple[int, ...], ...]
"""A start of two numbers, then lines (two), quadratic (four) and cubic curves (six numbers) to further points."""

CORNER_RADIUS = 8
FIRST_LANE, LANE = 4, 10


@dataclass(slots=True)
class Tracks:
    """Where links may run up and down: for each gap, the links (by number) that do and which end of them it is."""

    gaps: list[list[tuple[int, str]]]
    x: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    exit_tracks: dict[str, int] = field(default_factory=dict[str, int])
    lane: dict[int, int] = field(default_factory=dict[int, int])
    curve_left: list[int] = field(default_factory=lambda: [0])
    """Where curves may begin, left of each column; before that, labels stand."""
    column_right: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class RoutedLink:
    """A link with its path, and the left end of its label's line of text."""

    link: Link
    path: Path
    label: Point | None = None


def route_links(sheet: Subgraph, columns: Columns, tracks: Tracks, height: int) -> list[RoutedLink]:
    """The paths of all links of a sheet, in the order of the links."""
    return _Router(sheet, columns, tracks, height).run()


class _Router:
    def __init__(self, sheet: Subgraph, columns: Columns, tracks: Tracks, height: int) -> None:
        self.sheet = sheet
        self.cells = columns.cells
        self.columns = columns
        self.tracks = tracks
        self.height = height
        self.labelled: set[tuple[str, str]] = set()

    def run(self) -> list[RoutedLink]:
        chains = {id(link): chain for link, chain in self.columns.chains}
        drops = {id(link) for link in self.columns.vertical_pipes}
        routed: list[RoutedLink] = []
        for number, link in enumerate(self.sheet.links):
            if id(link) in chains:
                routed.append(RoutedLink(link, self.ahead(chains[id(link)]), self.label(link)))
            elif id(link) in drops:
                routed.append(self.drop(link, number))
            elif is_border_port(self.sheet.items[link.head]):
                routed.append(RoutedLink(link, self.leave(link, number)))
            elif is_border_port(self.sheet.items[link.tail]):
                routed.append(RoutedLink(link, self.enter(link, number)))
            else:
                routed.append(RoutedLink(link, self.back(link, number), self.label(link)))
        return routed

    def label(self, link: Link) -> Point | None:
        """Beside the place where the value leaves its box; once for each value."""
        tail = self.cells[link.tail]
        port = (tail.id, out_port(link))
        if not link.label or port in self.labelled:
            return None
        self.labelled.add(port)
        return tail.x + tail.w + 5, self.y_out(link) - (6 if link.style == "pipe" else 4)

    def y_out(self, link: Link) -> int:
        tail = self.cells[link.tail]
        return int(tail.y) + tail.right[out_port(link)]

    def y_into(self, link: Link) -> int:
        head = self.cells[link.head]
        return int(head.y) + head.left[in_port(link)]

    def ahead(self, chain: list[LinkSegment]) -> Path:
        tail = self.cells[chain[0].tail]
        y = int(tail.y) + tail.right[chain[0].out]
        path: list[tuple[int, ...]] = [(tail.x + tail.w, y)]
        for hop in chain:
            head = self.cells[hop.head]
            end = int(head.y) + head.left[hop.into]
            start = self.tracks.curve_left[head.rank]
            if y == end:
                path.append((head.x, end))
            else:
                middle = (start + head.x) // 2
                path += [(start, y), (middle, y, middle, end, head.x, end)]
            if head.item is None:
                path.append((self.tracks.column_right[head.rank], end))
            y = end
        return tuple(path)

    def back(self, link: Link, number: int) -> Path:
        tail, head = self.cells[link.tail], self.cells[link.head]
        leave, enter = self.tracks.x[number, "leave"], self.tracks.x[number, "enter"]
        lanes = 1 + max(self.tracks.lane.values())
        lane = self.height - FIRST_LANE - LANE * (lanes - self.tracks.lane[id(link)])
        out, into = self.y_out(link), self.y_into(link)
        return _round_corners(
            [(tail.x + tail.w, out), (leave, out), (leave, lane), (enter, lane), (enter, into), (head.x, into)]
        )

    def bottom(self, cell: Cell, key: str) -> tuple[list[Point], int]:
        """Out of a cell's bottom, and the height at which to go on to the side."""
        x = cell.x + cell.bottom[key]
        down = int(cell.y) + cell.h
        level = down + PIPE_EXIT_PX + PIPE_TRACK_PX * sorted(cell.bottom).index(key)
        return [(x, down), (x, level)], level

    def top(self, cell: Cell, key: str) -> tuple[list[Point], int]:
        """Into a cell's top, and the height at which to arrive from the side."""
        x = cell.x + cell.top[key]
        level = int(cell.y) - PIPE_ENTRY_PX - PIPE_TRACK_PX * sorted(cell.top).index(key)
        return [(x, level), (x, int(cell.y))], level

    def drop(self, link: Link, number: int) -> RoutedLink:
        tail, head = self.cells[link.tail], self.cells[link.head]
        out, low = self.bottom(tail, link.source)
        into, high = self.top(head, link.target)
        if (number, "leave") in self.tracks.x:
            side = self.tracks.x[number, "leave"]
            points = [*out, (side, low), (side, high), *into]
        else:
            points = [*out, (into[0][0], low), into[-1]]
        return RoutedLink(link, _round_corners(points), (into[-1][0] + 8, into[-1][1] - 7))

    def leave(self, link: Link, number: int) -> Path:
        tail, x = self.cells[link.tail], self.tracks.x[number, "leave"]
        if link.source in tail.bottom:
            out, low = self.bottom(tail, link.source)
            return _round_corners([*out, (x, low), (x, self.height)])
        y = self.y_out(link)
        return _round_corners([(tail.x + tail.w, y), (x, y), (x, self.height)])

    def enter(self, link: Link, number: int) -> Path:
        head, x = self.cells[link.head], self.tracks.x[number, "enter"]
        if link.target in head.top:
            into, high = self.top(head, link.target)
            return _round_corners([(x, 0), (x, high), *into])
        y = self.y_into(link)
        return _round_corners([(x, 0), (x, y), (head.x, y)])


def _round_corners(points: list[Point]) -> Path:
    """Straight runs with round corners."""
    path: list[tuple[int, ...]] = [points[0]]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _corner_point(corner, before), _corner_point(corner, after)
        path += [into, (*corner, *out)]
    return (*path, points[-1])


def _corner_point(corner: Point, other: Point) -> Point:
    """The point on the way from a corner to another point where its rounding ends."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    reach = min(CORNER_RADIUS, length // 2)
    if not length:
        return corner
    return corner[0] + round(dx * reach / length), corner[1] + round(dy * reach / length)
