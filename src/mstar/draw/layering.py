"""Columns for the items of one sheet, and their order from top to bottom in each.

An item stands right of all that it waits for. What fills a stream and what reads it run at the same time, so they
share a column where nothing else orders them. A link over several columns bends in each: a bend takes a place in
the order like an item does, so links never run through boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from mstar.draw.elements import Item, Link, Side, Subgraph

SWEEPS = 12


@dataclass(slots=True)
class Cell:
    """An item or a bend in its column; the ports of each side by key, from the top (left, right) or the left."""

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
        """Whether it is a bend or a port, which have no height."""
        return self.item is None or self.item.shape == "port"


@dataclass(frozen=True, slots=True)
class LinkSegment:
    """A link's way from one column to the next: cells, and the keys of their ports."""

    tail: str
    out: str
    head: str
    into: str


@dataclass(slots=True)
class Columns:
    """The cells of a sheet in their columns; column 0 is the left border, the last one the right border."""

    cells: dict[str, Cell]
    order: list[list[str]]
    chains: list[tuple[Link, list[LinkSegment]]]
    """Links that go from left to right, hop by hop."""
    vertical_pipes: list[Link]
    """Pipes between items of one column, from top to bottom."""
    back_links: list[Link]
    """Links that go from right to left, around everything else."""
    border_links: list[Link]
    """Links from the top border or to the bottom border."""


def out_port(link: Link) -> str:
    """The port at which a link leaves its tail: one for each value."""
    return link.value if link.source == link.tail else link.source


def in_port(link: Link) -> str:
    """The port at which a link reaches its head: one for each link."""
    return f"{link.source} {link.value}" if link.target == link.head else link.target


def is_border_port(item: Item) -> bool:
    """Whether an item is a port in the top or bottom border, outside all columns."""
    return item.shape == "port" and item.side in ("top", "bottom")


def assign_columns(sheet: Subgraph) -> Columns:
    """Columns for a sheet whose own ports have their sides; sets the sides of the ports of frames on it."""
    upright = [link for link in sheet.links if any(is_border_port(sheet.items[end]) for end in (link.tail, link.head))]
    links = [link for link in sheet.links if link not in upright]
    backs = [link for link in links if link.is_back]
    ahead = [link for link in links if not link.is_back]
    rank, last = _longest_path_ranks(sheet, ahead)
    drops = [link for link in ahead if rank[link.tail] == rank[link.head]]
    _set_port_sides(sheet, drops)
    cells = {name: Cell(name, rank[name], sheet.items[name]) for name in rank}
    order: list[list[str]] = [[] for _ in range(last + 1)]
    for name, cell in cells.items():
        order[cell.rank].append(name)
    columns = Columns(cells, order, [], drops, backs, upright)
    for link in ahead:
        if link not in drops:
            columns.chains.append((link, _chain(link, columns)))
    return columns


def _longest_path_ranks(sheet: Subgraph, ahead: list[Link]) -> tuple[dict[str, int], int]:
    """The column of every item, and which column is the right border."""
    before: defaultdict[str, list[Link]] = defaultdict(list)
    after: defaultdict[str, list[Link]] = defaultdict(list)
    for link in ahead:
        before[link.head].append(link)
        after[link.tail].append(link)
    names = [name for name, item in sheet.items.items() if not is_border_port(item)]
    ports = {name for name in names if sheet.items[name].shape == "port"}
    rank = {name: 0 if name in ports else 1 for name in names}
    # Sources first: one that was drawn on demand may come after what uses it.
    for name in sorted(names, key=lambda name: bool(before[name])):
        if name not in ports:
            steps = (rank[link.tail] + (not _is_vertical_pipe(sheet, link)) for link in before[name])
            rank[name] = max(1, *steps, 1)
    for name in names:
        users = [rank[link.head] for link in after[name] if link.head not in ports]
        if not before[name] and users and sheet.items[name].shape not in ("port", "carry", "item"):
            rank[name] = max(1, min(users) - 1)
    last = max(rank.values(), default=0) + 1
    rank |= {name: last for name in ports if sheet.items[name].side == "right"}
    return rank, last


def _is_vertical_pipe(sheet: Subgraph, link: Link) -> bool:
    """Whether a link may leave its tail at the bottom: a pipe, whose port is not also there for a value."""
    inside = sheet.items[link.tail].subgraph
    into = [] if inside is None else [inner for inner in inside.links if inner.target == link.source]
    return link.style == "pipe" and all(inner.style == "pipe" for inner in into)


def _set_port_sides(sheet: Subgraph, drops: list[Link]) -> None:
    def turn(frame: str, port: str, side: Side) -> None:
        inside = sheet.items[frame].subgraph
        if inside is not None:
            inside.items[port].side = side

    for link in sheet.links:
        if link in drops or (is_border_port(sheet.items[link.head]) and _is_vertical_pipe(sheet, link)):
            turn(link.tail, link.source, "bottom")
        if link in drops or is_border_port(sheet.items[link.tail]):
            turn(link.head, link.target, "top")


def _chain(link: Link, columns: Columns) -> list[LinkSegment]:
    tail, head = columns.cells[link.tail], columns.cells[link.head]
    hops: list[LinkSegment] = []
    at, out = tail.id, out_port(link)
    for rank in range(tail.rank + 1, head.rank):
        # Links of one value share their bends, so that they part as late as they can.
        name = f"{link.source} {link.value} @{rank}"
        if name not in columns.cells:
            columns.cells[name] = Cell(name, rank, left={"": 0}, right={"": 0})
            columns.order[rank].append(name)
        hops.append(LinkSegment(at, out, name, ""))
        at, out = name, ""
    return [*hops, LinkSegment(at, out, head.id, in_port(link))]


def reduce_crossings(columns: Columns) -> None:
    """Order each column so that few links cross; what a pipe joins stays together, its source above."""
    hops = list(dict.fromkeys(hop for _, chain in columns.chains for hop in chain))
    columns.order = [[name for block in _blocks(columns, column) for name in block] for column in columns.order]
    best = [list(column) for column in columns.order]
    fewest = _crossings(columns, hops)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        ranks = range(1, len(columns.order)) if forward else range(len(columns.order) - 2, -1, -1)
        for rank in ranks:
            _sort_column(columns, hops, rank, forward)
        if (now := _crossings(columns, hops)) < fewest:
            best, fewest = [list(column) for column in columns.order], now
    columns.order = best


def _positions(columns: Columns) -> Callable[[str, dict[str, int], str], float]:
    index = {name: at for column in columns.order for at, name in enumerate(column)}

    def place(name: str, ports: dict[str, int], key: str) -> float:
        cell = columns.cells[name]
        return index[name] + (ports[key] / (cell.h + 1) if key in ports else 0.5)

    return place


def _sort_column(columns: Columns, hops: list[LinkSegment], rank: int, forward: bool) -> None:
    place = _positions(columns)
    wants: defaultdict[str, list[float]] = defaultdict(list)
    for hop in hops:
        tail, head = columns.cells[hop.tail], columns.cells[hop.head]
        if forward and head.rank == rank:
            wants[head.id].append(place(tail.id, tail.right, hop.out))
        elif not forward and tail.rank == rank:
            wants[tail.id].append(place(head.id, head.left, hop.into))
    column = columns.order[rank]
    blocks = _blocks(columns, column)
    middle: dict[int, float] = {}
    for at, block in enumerate(blocks):
        found = [want for name in block for want in wants[name]]
        # What nothing pulls stays where it is.
        middle[at] = sum(found) / len(found) if found else float(column.index(block[0]))
    columns.order[rank] = [name for at in sorted(middle, key=lambda at: (middle[at], at)) for name in blocks[at]]


def _blocks(columns: Columns, column: list[str]) -> list[list[str]]:
    block = {name: [name] for name in column}
    known = list(columns.cells)
    for link in columns.vertical_pipes:
        first, second = block.get(link.tail), block.get(link.head)
        if first is not None and second is not None and first is not second:
            joined = sorted([*first, *second], key=known.index)
            block |= dict.fromkeys(joined, joined)
    seen: set[str] = set()
    blocks: list[list[str]] = []
    for name in column:
        if name not in seen:
            blocks.append(block[name])
            seen.update(block[name])
    return blocks


def _crossings(columns: Columns, hops: list[LinkSegment]) -> int:
    place = _positions(columns)
    lines: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for hop in hops:
        tail, head = columns.cells[hop.tail], columns.cells[hop.head]
        lines[tail.rank].append((place(tail.id, tail.right, hop.out), place(head.id, head.left, hop.into)))
    return sum(
        (one[0] - two[0]) * (one[1] - two[1]) < 0
        for between in lines.values()
        for at, one in enumerate(between)
        for two in between[:at]
    )
