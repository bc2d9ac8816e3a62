"""How much room text takes, without a font at hand.

The widths are those of a wide system font, so what fits here fits in the narrower ones that most people have.
"""

from __future__ import annotations

import math
from typing import Protocol

from mstar.draw.elements import Item, Shape

TITLE, NOTE, LABEL, CAPTION = 13, 10, 10, 11
"""Font sizes: the name in a box, the small text around it, text on an edge, the caption of a frame."""
PORT_STEP_PX = 16
"""From one port of a box to the next: room for a label between their lines."""

_NARROW = frozenset("ijlI.,:;'|!ftr()[]{} /")
_WIDE = frozenset("mwMW@%~=<>≤×…+")


class BoxText(Protocol):
    """Anything with the texts of a box."""

    @property
    def shape(self) -> Shape: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def note(self) -> str: ...  # noqa: D102


def text_width(text: str, size: int, *, is_bold: bool = False) -> int:
    """An upper estimate of a line's width in pixels."""
    ems = sum(0.42 if char in _NARROW else 0.95 if char in _WIDE else 0.72 if char.isupper() else 0.63 for char in text)
    return math.ceil(ems * size * (1.1 if is_bold else 1))


def item_size(item: Item, ports: int) -> tuple[int, int]:
    """The width and height of a box with its text and with room for so many ports on one side."""
    wide = max(text_width(line, size, is_bold=size == TITLE) for line, size in item_lines(item))
    tall = 12 + sum(size + 4 for _, size in item_lines(item))
    pad = {"op": 24, "emission": 34, "output": 34}.get(item.shape, 20)
    return max(wide + pad, 44), max(tall + (8 if item.shape == "state" else 0), PORT_STEP_PX * (ports - 1) + 14)


def item_lines(item: BoxText) -> list[tuple[str, int]]:
    """The lines of text in a box, each with its font size. An op has its component in small letters above it."""
    component, _, name = item.title.rpartition(".") if item.shape == "op" else ("", "", item.title)
    lines = [(component, NOTE), (name, TITLE), (item.note, NOTE)]
    return [(text, size) for text, size in lines if text]
