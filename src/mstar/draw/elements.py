"""Diagram elements before layout: items on nested subgraphs, and links between them.

A subgraph is the body of one region. A value crosses its border at a port, so both ends of a link are in the same
subgraph, and each subgraph can be laid out on its own. Coordinates are added in `layout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal[
    "op", "input", "output", "state", "emission", "carry", "item", "get", "const", "choose", "frame", "port"
]
Style = Literal["value", "extends", "views", "pipe"]
Side = Literal["left", "right", "top", "bottom"]


@dataclass(slots=True)
class Item:
    """A box, a frame with a nested subgraph, or a port on the border."""

    id: str
    shape: Shape
    title: str = ""
    note: str = ""
    workers: tuple[str, ...] = ()
    group: str = ""
    """Color group: its workers or its component. Empty for no color."""
    subgraph: Subgraph | None = None
    side: Side = "left"
    """Side of a port. Unused for other shapes."""


@dataclass(slots=True)
class Link:
    """A value, state or stream between two items of a subgraph.

    `tail` and `head` are items of the subgraph. `source` and `target` are the same, except at a frame: there they are
    the port of the nested subgraph.
    """

    tail: str
    source: str
    head: str
    target: str
    value: str
    style: Style
    label: str = ""
    is_back: bool = False
    crosses: bool = False


@dataclass(slots=True)
class Subgraph:
    """One region body: its items in program order, and its links."""

    id: str
    kind: str
    caption: str
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    links: list[Link] = field(default_factory=list[Link])

    def add(self, item: Item) -> Item:
        """Add an item."""
        self.items[item.id] = item
        return item

    def add_link(self, link: Link) -> None:
        """Add a link, unless the same link exists."""
        for existing in self.links:
            if (existing.source, existing.target, existing.value) == (link.source, link.target, link.value):
                return
        self.links.append(link)


def iter_subgraphs(subgraph: Subgraph) -> Iterator[Subgraph]:
    """Yield a subgraph and all nested subgraphs, outermost first."""
    yield subgraph
    for item in subgraph.items.values():
        if item.subgraph is not None:
            yield from iter_subgraphs(item.subgraph)
