"""The parts of a drawing before it is laid out: items on nested sheets, and the links between them.

A sheet is one body. What crosses the border of a sheet does so at a port, so every link has both ends on one sheet
and each sheet can be laid out by itself. There are no coordinates here; `plate` adds them.
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
    """Something on a sheet: a box, a frame with a sheet of its own, or a port on the sheet's border."""

    id: str
    shape: Shape
    title: str = ""
    note: str = ""
    workers: tuple[str, ...] = ()
    group: str = ""
    """What the item is coloured by: its workers, or its component; empty for no colour."""
    subgraph: Subgraph | None = None
    side: Side = "left"
    """Where a port is; only ports use it."""


@dataclass(slots=True)
class Link:
    """A value, state or stream on its way from one item of a sheet to another.

    `tail` and `head` are items of the sheet. `source` and `target` are the same, except at a frame: there they are
    the port through which the link goes on.
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
    """One body: its items in program order and its links."""

    id: str
    kind: str
    caption: str
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    links: list[Link] = field(default_factory=list[Link])

    def add(self, item: Item) -> Item:
        """Put an item on the sheet."""
        self.items[item.id] = item
        return item

    def add_link(self, link: Link) -> None:
        """Put a link on the sheet, unless the same way is there already."""
        for known in self.links:
            if (known.source, known.target, known.value) == (link.source, link.target, link.value):
                return
        self.links.append(link)


def iter_subgraphs(sheet: Subgraph) -> Iterator[Subgraph]:
    """A sheet and all sheets inside it, outermost first."""
    yield sheet
    for item in sheet.items.values():
        if item.subgraph is not None:
            yield from iter_subgraphs(item.subgraph)
