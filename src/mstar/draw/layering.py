"""Layer assignment and crossing reduction (Sugiyama): columns of a subgraph, and their vertical order.

An item is placed right of everything it depends on (longest path). A writer and a reader of a stream run concurrently,
so they share a column where nothing else orders them. A link over several columns gets a bend (dummy node) in each,
which takes part in the ordering, so that links never run through boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from mstar.draw.elements import Item, Link, Side, Subgraph

SWEEPS = 12


@dataclass(slots=True)
class Cell:
    """An item or a bend in a column, with its ports by side.

    Offsets are from the top (left, right) or from the left.
    """

    id: str
    rank: int
    item: Item | None = None
    w: int = 0
    h: int = 0
    x: int = 0
    y: float = 0
    left: dict[str, int] = field(default_factory=dict[str, int])
    right: dict[str, int] = field(default_factory=dict[str, int])
    top: dict[str, int] = field(default_factory=dict[str, int])
    bottom: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def has_no_height(self) -> bool:
        """Whether it is a bend or a port."""
        return self.item is None or self.item.shape == "port"


@dataclass(frozen=True, slots=True)
class LinkSegment:
    """Part of a link between two neighboring columns: cells, and the keys of their ports."""

    tail: str
    out: str
    head: str
    into: str


@dataclass(slots=True)
class Columns:
    """Cells of a subgraph in their columns. Column 0 is the left border, the last column the right border."""

    cells: dict[str, Cell]
    order: list[list[str]]
    chains: list[tuple[Link, list[LinkSegment]]]
    """Links from left to right, as segments."""
    vertical_pipes: list[Link]
    """Pipes between items of one column, downwards."""
    back_links: list[Link]
    """Links from right to left, routed around everything else."""
    border_links: list[Link]
    """Links from the top border or to the bottom border."""


def out_port(link: Link) -> str:
    """Key of the port where a link leaves its tail: one per value."""
    return link.value if link.source == link.tail else link.source


def in_port(link: Link) -> str:
    """Key of the port where a link enters its head: one per link."""
    return f"{link.source} {link.value}" if link.target == link.head else link.target


def is_border_port(item: Item) -> bool:
    """Whether an item is a port in the top or bottom border, outside all columns."""
    return item.shape == "port" and item.side in ("top", "bottom")


def assign_columns(subgraph: Subgraph) -> Columns:
    """Assign columns. The ports of the subgraph have their sides; the sides of nested ports are set here."""
    border_links = [
        link for link in subgraph.links if any(is_border_port(subgraph.items[end]) for end in (link.tail, link.head))
    ]
    links = [link for link in subgraph.links if link not in border_links]
    back_links = [link for link in links if link.is_back]
    forward_links = [link for link in links if not link.is_back]
    rank, last = _longest_path_ranks(subgraph, forward_links)
    vertical_pipes = [link for link in forward_links if rank[link.tail] == rank[link.head]]
    _set_port_sides(subgraph, vertical_pipes)
    cells = {name: Cell(name, rank[name], subgraph.items[name]) for name in rank}
    order: list[list[str]] = [[] for _ in range(last + 1)]
    for name, cell in cells.items():
        order[cell.rank].append(name)
    columns = Columns(cells, order, [], vertical_pipes, back_links, border_links)
    for link in forward_links:
        if link not in vertical_pipes:
            columns.chains.append((link, _chain(link, columns)))
    return columns


def _longest_path_ranks(subgraph: Subgraph, forward_links: list[Link]) -> tuple[dict[str, int], int]:
    """Return the column of every item, and the index of the right border."""
    before: defaultdict[str, list[Link]] = defaultdict(list)
    after: defaultdict[str, list[Link]] = defaultdict(list)
    for link in forward_links:
        before[link.head].append(link)
        after[link.tail].append(link)
    names = [name for name, item in subgraph.items.items() if not is_border_port(item)]
    ports = {name for name in names if subgraph.items[name].shape == "port"}
    rank = {name: 0 if name in ports else 1 for name in names}
    # Sources first: an item that was created on demand can follow its users.
    for name in sorted(names, key=lambda name: bool(before[name])):
        if name not in ports:
            steps = (rank[link.tail] + (not _is_vertical_pipe(subgraph, link)) for link in before[name])
            rank[name] = max(1, *steps, 1)
    for name in names:
        users = [rank[link.head] for link in after[name] if link.head not in ports]
        if not before[name] and users and subgraph.items[name].shape not in ("port", "carry", "item"):
            rank[name] = max(1, min(users) - 1)
    last = max(rank.values(), default=0) + 1
    rank |= {name: last for name in ports if subgraph.items[name].side == "right"}
    return rank, last


def _is_vertical_pipe(subgraph: Subgraph, link: Link) -> bool:
    """Whether a link can leave its tail at the bottom: a pipe whose port serves no value."""
    nested = subgraph.items[link.tail].subgraph
    into = [] if nested is None else [inner for inner in nested.links if inner.target == link.source]
    return link.style == "pipe" and all(inner.style == "pipe" for inner in into)


def _set_port_sides(subgraph: Subgraph, vertical_pipes: list[Link]) -> None:
    def set_side(frame: str, port: str, side: Side) -> None:
        nested = subgraph.items[frame].subgraph
        if nested is not None:
            nested.items[port].side = side

    for link in subgraph.links:
        if link in vertical_pipes or (is_border_port(subgraph.items[link.head]) and _is_vertical_pipe(subgraph, link)):
            set_side(link.tail, link.source, "bottom")
        if link in vertical_pipes or is_border_port(subgraph.items[link.tail]):
            set_side(link.head, link.target, "top")


def _chain(link: Link, columns: Columns) -> list[LinkSegment]:
    tail, head = columns.cells[link.tail], columns.cells[link.head]
    segments: list[LinkSegment] = []
    at, out = tail.id, out_port(link)
    for rank in range(tail.rank + 1, head.rank):
        # Links of one value share their bends, so that they split as late as possible.
        name = f"{link.source} {link.value} @{rank}"
        if name not in columns.cells:
            columns.cells[name] = Cell(name, rank, left={"": 0}, right={"": 0})
            columns.order[rank].append(name)
        segments.append(LinkSegment(at, out, name, ""))
        at, out = name, ""
    return [*segments, LinkSegment(at, out, head.id, in_port(link))]


def reduce_crossings(columns: Columns) -> None:
    """Order each column by the barycenter heuristic. Cells joined by a pipe stay together, its source above."""
    segments = list(dict.fromkeys(segment for _, chain in columns.chains for segment in chain))
    columns.order = [[name for block in _blocks(columns, column) for name in block] for column in columns.order]
    best = [list(column) for column in columns.order]
    fewest = _crossings(columns, segments)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        ranks = range(1, len(columns.order)) if forward else range(len(columns.order) - 2, -1, -1)
        for rank in ranks:
            _sort_column(columns, segments, rank, forward)
        if (crossings := _crossings(columns, segments)) < fewest:
            best, fewest = [list(column) for column in columns.order], crossings
    columns.order = best


def _positions(columns: Columns) -> Callable[[str, dict[str, int], str], float]:
    index = {name: at for column in columns.order for at, name in enumerate(column)}

    def place(name: str, ports: dict[str, int], key: str) -> float:
        cell = columns.cells[name]
        return index[name] + (ports[key] / (cell.h + 1) if key in ports else 0.5)

    return place


def _sort_column(columns: Columns, segments: list[LinkSegment], rank: int, forward: bool) -> None:
    place = _positions(columns)
    targets: defaultdict[str, list[float]] = defaultdict(list)
    for segment in segments:
        tail, head = columns.cells[segment.tail], columns.cells[segment.head]
        if forward and head.rank == rank:
            targets[head.id].append(place(tail.id, tail.right, segment.out))
        elif not forward and tail.rank == rank:
            targets[tail.id].append(place(head.id, head.left, segment.into))
    column = columns.order[rank]
    blocks = _blocks(columns, column)
    middle: dict[int, float] = {}
    for at, block in enumerate(blocks):
        positions = [target for name in block for target in targets[name]]
        # A block without links keeps its position.
        middle[at] = sum(positions) / len(positions) if positions else float(column.index(block[0]))
    columns.order[rank] = [name for at in sorted(middle, key=lambda at: (middle[at], at)) for name in blocks[at]]


def _blocks(columns: Columns, column: list[str]) -> list[list[str]]:
    block = {name: [name] for name in column}
    order = list(columns.cells)
    for link in columns.vertical_pipes:
        first, second = block.get(link.tail), block.get(link.head)
        if first is not None and second is not None and first is not second:
            merged = sorted([*first, *second], key=order.index)
            block |= dict.fromkeys(merged, merged)
    seen: set[str] = set()
    blocks: list[list[str]] = []
    for name in column:
        if name not in seen:
            blocks.append(block[name])
            seen.update(block[name])
    return blocks


def _crossings(columns: Columns, segments: list[LinkSegment]) -> int:
    place = _positions(columns)
    lines: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for segment in segments:
        tail, head = columns.cells[segment.tail], columns.cells[segment.head]
        lines[tail.rank].append((place(tail.id, tail.right, segment.out), place(head.id, head.left, segment.into)))
    return sum(
        (first[0] - second[0]) * (first[1] - second[1]) < 0
        for between in lines.values()
        for at, first in enumerate(between)
        for second in between[:at]
    )
