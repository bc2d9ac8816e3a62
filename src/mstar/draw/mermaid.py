"""A walk as Mermaid flowchart text, for places that render it themselves.

Mermaid does its own layout, so this starts from the parts of a drawing and not from a picture: links run straight
from box to box, and ports are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from mstar.draw.builder import WorkersByOp, build_drawing
from mstar.draw.crossing import mark_crossings
from mstar.draw.elements import Item, Link, Subgraph, iter_subgraphs
from mstar.graph.ir import Walk

SHAPES = {
    "op": ('["', '"]'),
    "input": ('(["', '"])'),
    "state": ('[("', '")]'),
    "emission": ('>"', '"]'),
    "output": ('>"', '"]'),
    "choose": ('{{"', '"}}'),
}
"""How each shape is bracketed; the others are like inputs."""

CROSSING_STYLE = "stroke:#cf5a1c,stroke-width:2px"


def to_mermaid(walk: Walk, placement: WorkersByOp | None = None) -> str:
    """The walk as a flowchart; with a placement, ops name their workers and links to another worker stand out."""
    sheet = build_drawing(walk, placement)
    mark_crossings(sheet)
    arrows = {f"  {_node_id(way.source)} {_arrow(way)} {_node_id(way.head)}": way.crosses for way in _box_links(sheet)}
    crossing = [str(at) for at, crosses in enumerate(arrows.values()) if crosses]
    lines = [
        "flowchart LR",
        *_nodes(sheet, "  "),
        *arrows,
        *([f"  linkStyle {','.join(crossing)} {CROSSING_STYLE}"] if crossing else []),
    ]
    return "\n".join(lines) + "\n"


def _node_id(item: str) -> str:
    """An id that Mermaid accepts and that is none of its words."""
    return "n_" + "".join(char if char.isalnum() else "_" for char in item)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _nodes(sheet: Subgraph, pad: str) -> Iterator[str]:
    for item in sheet.items.values():
        if item.subgraph is not None and _has_boxes(item.subgraph):
            yield f'{pad}subgraph {_node_id(item.id)}["{_escape(item.title)}"]'
            yield from _nodes(item.subgraph, pad + "  ")
            yield f"{pad}end"
        elif item.shape != "port":
            yield pad + _node_id(item.id) + _label(item)  # a frame without boxes too: a subgraph must not be empty


def _has_boxes(sheet: Subgraph) -> bool:
    return any(item.shape not in ("port", "frame") for inner in iter_subgraphs(sheet) for item in inner.items.values())


def _label(item: Item) -> str:
    before, after = SHAPES.get(item.shape, SHAPES["input"])
    texts = (item.title, item.note, ", ".join(item.workers))
    return before + "<br/>".join(_escape(text) for text in texts if text) + after


def _box_links(sheet: Subgraph) -> Iterator[Link]:
    """Links from box to box, with what they pass through left out."""
    items: dict[str, Item] = {}
    into: defaultdict[str, list[Link]] = defaultdict(list)
    starts: set[str] = set()
    for inner in iter_subgraphs(sheet):
        items |= inner.items
        for link in inner.links:
            into[link.target].append(link)
            starts.add(link.source)

    def lengthen(link: Link) -> Iterator[Link]:
        if items[link.source].shape != "port":
            yield link
        else:
            for earlier in into[link.source]:
                crosses = link.crosses and earlier.crosses
                way = replace(link, source=earlier.source, label=link.label or earlier.label, crosses=crosses)
                yield from lengthen(way)

    for links in list(into.values()):
        for link in links:
            if items[link.target].shape != "port" or link.target not in starts:
                yield from lengthen(link)


def _arrow(link: Link) -> str:
    label = f'|"{_escape(link.label)}"|' if link.label else ""
    if link.style == "pipe":
        return f"-.->{label}"
    if link.is_back:
        return '-->|"next"|'
    return {"value": "-->", "extends": "==>", "views": "--o"}[link.style] + label
