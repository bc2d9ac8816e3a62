"""Edge routing: paths of links in a laid-out subgraph.

Links run horizontally, curve between columns, and use reserved vertical tracks, so that no path crosses a box or a
text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar.draw.coordinates import PIPE_ENTRY_PX, PIPE_EXIT_PX, PIPE_TRACK_PX
from mstar.draw.elements import Link, Subgraph
from mstar.draw.layering import Cell, Columns, LinkSegment, in_port, is_border_port, out_port

Point = tuple[int, int]
Path = tuple[tuple[int, ...], ...]
"""Start point (2 numbers), then lines (2), quadratic curves (4) and cubic curves (6) to further points."""

CORNER_RADIUS = 8
FIRST_BACK_TRACK_PX = 4
BACK_TRACK_PX = 10


@dataclass(slots=True)
class Tracks:
    """Vertical tracks: for each gap between columns, the links (by index) that use it, and at which end."""

    gaps: list[list[tuple[int, str]]]
    x: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    exit_tracks: dict[str, int] = field(default_factory=dict[str, int])
    back_track: dict[int, int] = field(default_factory=dict[int, int])
    curve_left: list[int] = field(default_factory=lambda: [0])
    """Left of each column, the x at which curves start. Labels are placed before it."""
    column_right: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class RoutedLink:
    """A link with its path, and the start point of its label."""

    link: Link
    path: Path
    label: Point | None = None


def route_links(subgraph: Subgraph, columns: Columns, tracks: Tracks, height: int) -> list[RoutedLink]:
    """Return the paths of all links of a subgraph, in their order."""
    return _Router(subgraph, columns, tracks, height).run()


class _Router:
    def __init__(self, subgraph: Subgraph, columns: Columns, tracks: Tracks, height: int) -> None:
        self.subgraph = subgraph
        self.cells = columns.cells
        self.columns = columns
        self.tracks = tracks
        self.height = height
        self.labeled: set[tuple[str, str]] = set()

    def run(self) -> list[RoutedLink]:
        chains = {id(link): chain for link, chain in self.columns.chains}
        vertical_pipes = {id(link) for link in self.columns.vertical_pipes}
        routed: list[RoutedLink] = []
        for index, link in enumerate(self.subgraph.links):
            if id(link) in chains:
                routed.append(RoutedLink(link, self.route_forward(chains[id(link)]), self.label(link)))
            elif id(link) in vertical_pipes:
                routed.append(self.route_vertical(link, index))
            elif is_border_port(self.subgraph.items[link.head]):
                routed.append(RoutedLink(link, self.route_exit(link, index)))
            elif is_border_port(self.subgraph.items[link.tail]):
                routed.append(RoutedLink(link, self.route_entry(link, index)))
            else:
                routed.append(RoutedLink(link, self.route_back(link, index), self.label(link)))
        return routed

    def label(self, link: Link) -> Point | None:
        """Return the position of a label at the tail of the link. Each value is labeled once."""
        tail = self.cells[link.tail]
        port = (tail.id, out_port(link))
        if not link.label or port in self.labeled:
            return None
        self.labeled.add(port)
        return tail.x + tail.w + 5, self.y_out(link) - (6 if link.style == "pipe" else 4)

    def y_out(self, link: Link) -> int:
        tail = self.cells[link.tail]
        return int(tail.y) + tail.right[out_port(link)]

    def y_into(self, link: Link) -> int:
        head = self.cells[link.head]
        return int(head.y) + head.left[in_port(link)]

    def route_forward(self, chain: list[LinkSegment]) -> Path:
        tail = self.cells[chain[0].tail]
        y = int(tail.y) + tail.right[chain[0].out]
        path: list[tuple[int, ...]] = [(tail.x + tail.w, y)]
        for segment in chain:
            head = self.cells[segment.head]
            end = int(head.y) + head.left[segment.into]
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

    def route_back(self, link: Link, index: int) -> Path:
        tail, head = self.cells[link.tail], self.cells[link.head]
        leave, enter = self.tracks.x[index, "leave"], self.tracks.x[index, "enter"]
        count = 1 + max(self.tracks.back_track.values())
        y = self.height - FIRST_BACK_TRACK_PX - BACK_TRACK_PX * (count - self.tracks.back_track[id(link)])
        out, into = self.y_out(link), self.y_into(link)
        return _round_corners(
            [(tail.x + tail.w, out), (leave, out), (leave, y), (enter, y), (enter, into), (head.x, into)]
        )

    def bottom(self, cell: Cell, key: str) -> tuple[list[Point], int]:
        """Return the points out of the bottom of a cell, and the y at which to turn sideways."""
        x = cell.x + cell.bottom[key]
        down = int(cell.y) + cell.h
        level = down + PIPE_EXIT_PX + PIPE_TRACK_PX * sorted(cell.bottom).index(key)
        return [(x, down), (x, level)], level

    def top(self, cell: Cell, key: str) -> tuple[list[Point], int]:
        """Return the points into the top of a cell, and the y at which to arrive."""
        x = cell.x + cell.top[key]
        level = int(cell.y) - PIPE_ENTRY_PX - PIPE_TRACK_PX * sorted(cell.top).index(key)
        return [(x, level), (x, int(cell.y))], level

    def route_vertical(self, link: Link, index: int) -> RoutedLink:
        tail, head = self.cells[link.tail], self.cells[link.head]
        out, low = self.bottom(tail, link.source)
        into, high = self.top(head, link.target)
        if (index, "leave") in self.tracks.x:
            side = self.tracks.x[index, "leave"]
            points = [*out, (side, low), (side, high), *into]
        else:
            points = [*out, (into[0][0], low), into[-1]]
        return RoutedLink(link, _round_corners(points), (into[-1][0] + 8, into[-1][1] - 7))

    def route_exit(self, link: Link, index: int) -> Path:
        tail, x = self.cells[link.tail], self.tracks.x[index, "leave"]
        if link.source in tail.bottom:
            out, low = self.bottom(tail, link.source)
            return _round_corners([*out, (x, low), (x, self.height)])
        y = self.y_out(link)
        return _round_corners([(tail.x + tail.w, y), (x, y), (x, self.height)])

    def route_entry(self, link: Link, index: int) -> Path:
        head, x = self.cells[link.head], self.tracks.x[index, "enter"]
        if link.target in head.top:
            into, high = self.top(head, link.target)
            return _round_corners([(x, 0), (x, high), *into])
        y = self.y_into(link)
        return _round_corners([(x, 0), (x, y), (head.x, y)])


def _round_corners(points: list[Point]) -> Path:
    """Connect points with straight lines and rounded corners."""
    path: list[tuple[int, ...]] = [points[0]]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _corner_point(corner, before), _corner_point(corner, after)
        path += [into, (*corner, *out)]
    return (*path, points[-1])


def _corner_point(corner: Point, other: Point) -> Point:
    """Return the point towards `other` where the rounding of a corner ends."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    reach = min(CORNER_RADIUS, length // 2)
    if not length:
        return corner
    return corner[0] + round(dx * reach / length), corner[1] + round(dy * reach / length)
