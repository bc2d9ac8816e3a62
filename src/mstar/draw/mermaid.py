"""Mermaid export: a walk as flowchart text, for viewers that render Mermaid.

Mermaid does its own layout, so this starts from diagram elements, not from a picture: links run from box to box, and
ports are omitted.
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
"""Brackets of each shape. Other shapes use those of an input."""

CROSSING_STYLE = "stroke:#cf5a1c,stroke-width:2px"


def to_mermaid(walk: Walk, placement: WorkersByOp | None = None) -> str:
    """Export a walk. With a placement, ops name their workers, and links between workers are highlighted."""
    subgraph = build_drawing(walk, placement)
    mark_crossings(subgraph)
    arrows = {
        f"  {_node_id(link.source)} {_arrow(link)} {_node_id(link.head)}": link.crosses for link in _box_links(subgraph)
    }
    crossing = [str(at) for at, crosses in enumerate(arrows.values()) if crosses]
    lines = [
        "flowchart LR",
        *_nodes(subgraph, "  "),
        *arrows,
        *([f"  linkStyle {','.join(crossing)} {CROSSING_STYLE}"] if crossing else []),
    ]
    return "\n".join(lines) + "\n"


def _node_id(item: str) -> str:
    """Return an id that is valid in Mermaid and not a keyword."""
    return "n_" + "".join(char if char.isalnum() else "_" for char in item)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _nodes(subgraph: Subgraph, pad: str) -> Iterator[str]:
    for item in subgraph.items.values():
        if item.subgraph is not None and _has_boxes(item.subgraph):
            yield f'{pad}subgraph {_node_id(item.id)}["{_escape(item.title)}"]'
            yield from _nodes(item.subgraph, pad + "  ")
            yield f"{pad}end"
        elif item.shape != "port":
            yield pad + _node_id(item.id) + _label(item)  # also for an empty frame: Mermaid rejects empty subgraphs


def _has_boxes(subgraph: Subgraph) -> bool:
    return any(
        item.shape not in ("port", "frame") for inner in iter_subgraphs(subgraph) for item in inner.items.values()
    )


def _label(item: Item) -> str:
    before, after = SHAPES.get(item.shape, SHAPES["input"])
    texts = (item.title, item.note, ", ".join(item.workers))
    return before + "<br/>".join(_escape(text) for text in texts if text) + after


def _box_links(subgraph: Subgraph) -> Iterator[Link]:
    """Yield links from box to box, without the ports between them."""
    items: dict[str, Item] = {}
    into: defaultdict[str, list[Link]] = defaultdict(list)
    starts: set[str] = set()
    for inner in iter_subgraphs(subgraph):
        items |= inner.items
        for link in inner.links:
            into[link.target].append(link)
            starts.add(link.source)

    def resolve(link: Link) -> Iterator[Link]:
        if items[link.source].shape != "port":
            yield link
        else:
            for earlier in into[link.source]:
                crosses = link.crosses and earlier.crosses
                resolved = replace(link, source=earlier.source, label=link.label or earlier.label, crosses=crosses)
                yield from resolve(resolved)

    for links in list(into.values()):
        for link in links:
            if items[link.target].shape != "port" or link.target not in starts:
                yield from resolve(link)


def _arrow(link: Link) -> str:
    label = f'|"{_escape(link.label)}"|' if link.label else ""
    if link.style == "pipe":
        return f"-.->{label}"
    if link.is_back:
        return '-->|"next"|'
    return {"value": "-->", "extends": "==>", "views": "--o"}[link.style] + label
