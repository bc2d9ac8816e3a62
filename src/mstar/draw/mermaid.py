"""A walk as Mermaid flowchart text, for places that render it themselves.

Mermaid does its own layout, so this starts from the parts of a drawing and not from a picture: links run straight
from box to box, and ports are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from mstar.draw.crossing import mark_crossings
from mstar.draw.parts import Item, Link, Sheet, sheets
from mstar.draw.sketch import Placement, sketch
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

CROSSING = "stroke:#cf5a1c,stroke-width:2px"


def to_mermaid(walk: Walk, placement: Placement | None = None) -> str:
    """The walk as a flowchart; with a placement, ops name their workers and links to another worker stand out."""
    sheet = sketch(walk, placement)
    mark_crossings(sheet)
    arrows = {f"  {_name(way.source)} {_arrow(way)} {_name(way.head)}": way.crosses for way in _ways(sheet)}
    crossing = [str(at) for at, crosses in enumerate(arrows.values()) if crosses]
    lines = [
        "flowchart LR",
        *_nodes(sheet, "  "),
        *arrows,
        *([f"  linkStyle {','.join(crossing)} {CROSSING}"] if crossing else []),
    ]
    return "\n".join(lines) + "\n"


def _name(item: str) -> str:
    """An id that Mermaid accepts and that is none of its words."""
    return "n_" + "".join(char if char.isalnum() else "_" for char in item)


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _nodes(sheet: Sheet, pad: str) -> Iterator[str]:
    for item in sheet.items.values():
        if item.inside is not None and _has_boxes(item.inside):
            yield f'{pad}subgraph {_name(item.id)}["{_quoted(item.title)}"]'
            yield from _nodes(item.inside, pad + "  ")
            yield f"{pad}end"
        elif item.shape != "port":
            yield pad + _name(item.id) + _label(item)  # a frame without boxes too: a subgraph must not be empty


def _has_boxes(sheet: Sheet) -> bool:
    return any(item.shape not in ("port", "frame") for inner in sheets(sheet) for item in inner.items.values())


def _label(item: Item) -> str:
    before, after = SHAPES.get(item.shape, SHAPES["input"])
    texts = (item.title, item.note, ", ".join(item.workers))
    return before + "<br/>".join(_quoted(text) for text in texts if text) + after


def _ways(sheet: Sheet) -> Iterator[Link]:
    """Links from box to box, with what they pass through left out."""
    items: dict[str, Item] = {}
    into: defaultdict[str, list[Link]] = defaultdict(list)
    starts: set[str] = set()
    for inner in sheets(sheet):
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
    label = f'|"{_quoted(link.label)}"|' if link.label else ""
    if link.style == "pipe":
        return f"-.->{label}"
    if link.is_back:
        return '-->|"next"|'
    return {"value": "-->", "extends": "==>", "views": "--o"}[link.style] + label
