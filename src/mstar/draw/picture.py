"""Picture of a walk: boxes, frames, edges and a legend with integer coordinates.

Deterministic for a walk and a placement. Colors, fonts and shapes are up to the renderer: `svg`, or a browser with the
JSON export.
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

MARGIN_PX = 16
LEGEND_ROW_PX = 20
SAMPLE_PX = 26
"""Width of a color or line sample in the legend."""
MAX_LABELLED_WIDTH_PX = 1100
"""Maximum width with types on edges. Wider pictures show types in tooltips only."""

STYLE_LABELS = {
    "value": "value",
    "carry": "carried to the next iteration",
    "extends": "state, extended",
    "views": "state, only read",
    "pipe": "stream",
    "crosses": "to another worker",
}
"""Legend text of each edge style."""


@dataclass(frozen=True, slots=True)
class Box:
    """An op, an input, a state, an emission, or a small item between them."""

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
    color: int | None
    """Color index of the worker, or of the component without a placement. None for neither."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The border of a region. `frame` is the enclosing one, empty for the walk itself."""

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
    """Path of a link in one subgraph. An end at the border of a frame is a port, where the value continues."""

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
    """Legend entry: a color index or an edge style, and its text."""

    text: str
    x: int
    y: int
    color: int | None = None
    style: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A laid-out walk."""

    name: str
    width: int
    height: int
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    edges: tuple[Edge, ...]
    legend: tuple[LegendEntry, ...]


def to_picture(walk: Walk, placement: WorkersByOp | None = None) -> Picture:
    """Lay out a walk. With a placement ("component.op" to worker names), color by worker and mark crossings."""
    subgraph = build_drawing(walk, placement)
    layout = lay_out(subgraph)
    if layout.w > MAX_LABELLED_WIDTH_PX:
        subgraph = build_drawing(walk, placement, show_types=False)
        layout = lay_out(subgraph)
    mark_crossings(subgraph)
    groups = _groups(subgraph)
    relays = _relay_ports(subgraph)
    types = _value_types(walk)
    layouts = list(_positioned_layouts(layout, MARGIN_PX, MARGIN_PX))
    parts = [part for nested, x, y in layouts for part in _boxes_and_frames(nested, x, y, groups)]
    boxes = tuple(part for part in parts if isinstance(part, Box))
    frames = tuple(part for part in parts if isinstance(part, Frame))
    edges = tuple(edge for nested, x, y in layouts for edge in _edges(nested, x, y, relays, types))
    legend = _legend(groups, edges, layout.w, MARGIN_PX + layout.h + LEGEND_ROW_PX)
    width = max(layout.w, *(entry.x + SAMPLE_PX + 8 + text_width(entry.text, LABEL) - MARGIN_PX for entry in legend), 0)
    height = max([MARGIN_PX + layout.h, *(entry.y + LEGEND_ROW_PX // 2 for entry in legend)])
    return Picture(walk.name, width + 2 * MARGIN_PX, height + MARGIN_PX, boxes, frames, edges, legend)


def _groups(subgraph: Subgraph) -> dict[str, int]:
    names = [item.group for inner in iter_subgraphs(subgraph) for item in inner.items.values() if item.group]
    return {group: at for at, group in enumerate(sorted(set(names)))}


def _relay_ports(subgraph: Subgraph) -> frozenset[str]:
    """Ports where a value continues to another link."""
    starts = {link.source for inner in iter_subgraphs(subgraph) for link in inner.links}
    ports = {item.id for inner in iter_subgraphs(subgraph) for item in inner.items.values() if item.shape == "port"}
    return frozenset(ports & starts)


def _value_types(walk: Walk) -> dict[str, str]:
    """Types of values and streams, by the names that links use."""
    nodes = list(flat(walk.body))
    values = [*walk.inputs, *(value for node in nodes for value in (*binds(node), *defines(node)))]
    streams = {f"~{node.stream}": type_text(node.item) for node in nodes if isinstance(node, Open)}
    return {value.name: type_text(value.type) for value in values} | streams


def _positioned_layouts(layout: SubgraphLayout, x: int, y: int) -> Iterator[tuple[SubgraphLayout, int, int]]:
    yield layout, x, y
    for cell in layout.cells:
        if cell.id in layout.inner:
            yield from _positioned_layouts(layout.inner[cell.id], x + cell.x, y + int(cell.y))


def _boxes_and_frames(layout: SubgraphLayout, x: int, y: int, groups: dict[str, int]) -> Iterator[Box | Frame]:
    for cell in layout.cells:
        assert cell.item is not None
        item, left, top = cell.item, x + cell.x, y + int(cell.y)
        if item.subgraph is not None:
            caption_x = left + layout.inner[item.id].caption_x
            geometry = (caption_x, left, top, cell.w, cell.h)
            yield Frame(item.id, item.subgraph.kind, item.title, *geometry, frame=layout.subgraph.id)
        else:
            geometry, color = (left, top, cell.w, cell.h), groups.get(item.group)
            yield Box(item.id, item.shape, item.title, item.note, *geometry, layout.subgraph.id, item.workers, color)


def _edges(layout: SubgraphLayout, x: int, y: int, relays: frozenset[str], types: dict[str, str]) -> Iterator[Edge]:
    for routed in layout.routes:
        link = routed.link
        path = tuple(
            tuple(coordinate + (y if at % 2 else x) for at, coordinate in enumerate(step)) for step in routed.path
        )
        label_x, label_y = routed.label or (0, 0)
        yield Edge(
            *(link.source, link.target, link.value, types.get(link.value, ""), link.style, path),
            *((link.label, x + label_x, y + label_y) if routed.label else ("", 0, 0)),
            *(link.is_back, link.crosses, link.target not in relays),
            layout.subgraph.id,
        )


def _legend(groups: dict[str, int], edges: tuple[Edge, ...], width: int, y: int) -> tuple[LegendEntry, ...]:
    """Legend of the colors and styles that occur, in rows below the picture."""
    entries: list[tuple[str, int | None, str]] = [(group, at, "") for group, at in groups.items()]
    styles = {("carry" if edge.is_back and edge.style == "value" else edge.style) for edge in edges}
    styles |= {"crosses" for edge in edges if edge.crosses}
    entries += [(text, None, style) for style, text in STYLE_LABELS.items() if style in styles]
    legend: list[LegendEntry] = []
    x = MARGIN_PX
    for text, color, style in entries:
        width_needed = SAMPLE_PX + 8 + text_width(text, LABEL) + 18
        if x > MARGIN_PX and (x + width_needed > width or (style and legend and not legend[-1].style)):
            x, y = MARGIN_PX, y + LEGEND_ROW_PX
        legend.append(LegendEntry(text, x, y, color, style))
        x += width_needed
    return tuple(legend)
