"""A walk as a picture: boxes, frames, edges and a legend, with integer coordinates.

The same walk and placement give the same picture. What it looks like (colours, fonts, shapes) is up to who draws it:
`svg`, or a browser that was given the JSON form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar.draw.builder import WorkersByOp, build_drawing, type_text
from mstar.draw.crossing import mark_crossings
from mstar.draw.edge_routing import Path
from mstar.draw.elements import Shape, Style, Subgraph, iter_subgraphs
from mstar.draw.layout import SubgraphLayout, lay_out
from mstar.draw.text_size import LABEL, text_width
from mstar.graph.ir import Open, Walk, binds, defines, flat

MARGIN, LEGEND_ROW, SAMPLE = 16, 20, 26
MAX_LABELLED_WIDTH_PX = 1100
"""A picture that would be wider than this leaves the types on its edges to tooltips."""

STYLE_LABELS = {
    "value": "value",
    "carry": "carried to the next iteration",
    "extends": "state, extended",
    "views": "state, only read",
    "pipe": "stream",
    "crosses": "to another worker",
}
"""What the legend calls each style of edge."""


@dataclass(frozen=True, slots=True)
class Box:
    """An op, an input, a state, an emission, or one of the small things between them."""

    id: str
    shape: Shape
    title: str
    note: str
    x: int
    y: int
    w: int
    h: int
    frame: str
    workers: tuple[str, ...]
    colour: int | None
    """A number for each worker, or for each component where no placement is given; None for neither."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The border around the body of a region; `frame` is the one around it, empty for the walk itself."""

    id: str
    kind: str
    caption: str
    caption_x: int
    x: int
    y: int
    w: int
    h: int
    frame: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A link's way on one sheet. An end at the border of a frame is a port; the value goes on from there."""

    source: str
    target: str
    value: str
    type: str
    style: Style
    path: Path
    label: str
    label_x: int
    label_y: int
    is_back: bool
    crosses: bool
    has_arrow: bool
    frame: str


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One entry of the legend: a colour (by number) or a style of edge, and what it stands for."""

    text: str
    x: int
    y: int
    colour: int | None = None
    style: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A walk, laid out."""

    name: str
    width: int
    height: int
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    edges: tuple[Edge, ...]
    legend: tuple[LegendEntry, ...]


def to_picture(walk: Walk, placement: WorkersByOp | None = None) -> Picture:
    """A walk's picture; with a placement ("component.op" to worker names), by workers and with their crossings."""
    sheet = build_drawing(walk, placement)
    plate = lay_out(sheet)
    if plate.w > MAX_LABELLED_WIDTH_PX:
        sheet = build_drawing(walk, placement, show_types=False)
        plate = lay_out(sheet)
    mark_crossings(sheet)
    groups = _groups(sheet)
    through = _relay_ports(sheet)
    types = _value_types(walk)
    placed = list(_positioned_layouts(plate, MARGIN, MARGIN))
    parts = [part for at, x, y in placed for part in _boxes_and_frames(at, x, y, groups)]
    boxes = tuple(part for part in parts if isinstance(part, Box))
    frames = tuple(part for part in parts if isinstance(part, Frame))
    edges = tuple(edge for at, x, y in placed for edge in _edges(at, x, y, through, types))
    legend = _legend(groups, edges, plate.w, MARGIN + plate.h + LEGEND_ROW)
    width = max(plate.w, *(key.x + SAMPLE + 8 + text_width(key.text, LABEL) - MARGIN for key in legend), 0)
    height = max([MARGIN + plate.h, *(key.y + LEGEND_ROW // 2 for key in legend)])
    return Picture(walk.name, width + 2 * MARGIN, height + MARGIN, boxes, frames, edges, legend)


def _groups(sheet: Subgraph) -> dict[str, int]:
    found = [item.group for inner in iter_subgraphs(sheet) for item in inner.items.values() if item.group]
    return {group: at for at, group in enumerate(sorted(set(found)))}


def _relay_ports(sheet: Subgraph) -> frozenset[str]:
    """The ports at which links go on."""
    starts = {link.source for inner in iter_subgraphs(sheet) for link in inner.links}
    ports = {item.id for inner in iter_subgraphs(sheet) for item in inner.items.values() if item.shape == "port"}
    return frozenset(ports & starts)


def _value_types(walk: Walk) -> dict[str, str]:
    """The types of values and streams, by the names that links have."""
    nodes = list(flat(walk.body))
    values = [*walk.inputs, *(value for node in nodes for value in (*binds(node), *defines(node)))]
    streams = {f"~{node.stream}": type_text(node.item) for node in nodes if isinstance(node, Open)}
    return {value.name: type_text(value.type) for value in values} | streams


def _positioned_layouts(plate: SubgraphLayout, x: int, y: int) -> Iterator[tuple[SubgraphLayout, int, int]]:
    yield plate, x, y
    for cell in plate.cells:
        if cell.id in plate.inner:
            yield from _positioned_layouts(plate.inner[cell.id], x + cell.x, y + int(cell.y))


def _boxes_and_frames(plate: SubgraphLayout, x: int, y: int, groups: dict[str, int]) -> Iterator[Box | Frame]:
    for cell in plate.cells:
        assert cell.item is not None
        item, left, top = cell.item, x + cell.x, y + int(cell.y)
        if item.subgraph is not None:
            caption_x = left + plate.inner[item.id].caption_x
            where = (caption_x, left, top, cell.w, cell.h)
            yield Frame(item.id, item.subgraph.kind, item.title, *where, frame=plate.sheet.id)
        else:
            where, colour = (left, top, cell.w, cell.h), groups.get(item.group)
            yield Box(item.id, item.shape, item.title, item.note, *where, plate.sheet.id, item.workers, colour)


def _edges(plate: SubgraphLayout, x: int, y: int, through: frozenset[str], types: dict[str, str]) -> Iterator[Edge]:
    for routed in plate.routes:
        link = routed.link
        path = tuple(tuple(number + (y if at % 2 else x) for at, number in enumerate(step)) for step in routed.path)
        label_x, label_y = routed.label or (0, 0)
        yield Edge(
            *(link.source, link.target, link.value, types.get(link.value, ""), link.style, path),
            *((link.label, x + label_x, y + label_y) if routed.label else ("", 0, 0)),
            *(link.is_back, link.crosses, link.target not in through),
            plate.sheet.id,
        )


def _legend(groups: dict[str, int], edges: tuple[Edge, ...], width: int, y: int) -> tuple[LegendEntry, ...]:
    """The colours and the styles that occur, in rows under the picture."""
    wanted: list[tuple[str, int | None, str]] = [(group, at, "") for group, at in groups.items()]
    seen = {("carry" if edge.is_back and edge.style == "value" else edge.style) for edge in edges}
    seen |= {"crosses" for edge in edges if edge.crosses}
    wanted += [(text, None, style) for style, text in STYLE_LABELS.items() if style in seen]
    keys: list[LegendEntry] = []
    x = MARGIN
    for text, colour, style in wanted:
        room = SAMPLE + 8 + text_width(text, LABEL) + 18
        if x > MARGIN and (x + room > width or (style and keys and not keys[-1].style)):
            x, y = MARGIN, y + LEGEND_ROW
        keys.append(LegendEntry(text, x, y, colour, style))
        x += room
    return tuple(keys)
