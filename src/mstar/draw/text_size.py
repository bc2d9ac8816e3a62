"""Text size estimates without a font.

Widths are those of a wide system font, so that text also fits in narrower ones.
"""

from __future__ import annotations

import math
from typing import Protocol

from mstar.draw.elements import Item, Shape

TITLE = 13
"""Font size in px of the name in a box."""
NOTE = 10
"""Font size in px of the small text in a box."""
LABEL = 10
"""Font size in px of the text on an edge."""
CAPTION = 11
"""Font size in px of the caption of a frame."""
PORT_STEP_PX = 16
"""Distance between two ports of a box, with space for a label."""

_NARROW = frozenset("ijlI.,:;'|!ftr()[]{} /")
_WIDE = frozenset("mwMW@%~=<>≤×…+")


class BoxText(Protocol):
    """Object with the texts of a box."""

    @property
    def shape(self) -> Shape: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def note(self) -> str: ...  # noqa: D102


def text_width(text: str, size: int, *, is_bold: bool = False) -> int:
    """Return an upper estimate of the width of a line in px."""
    ems = sum(0.42 if char in _NARROW else 0.95 if char in _WIDE else 0.72 if char.isupper() else 0.63 for char in text)
    return math.ceil(ems * size * (1.1 if is_bold else 1))


def item_size(item: Item, ports: int) -> tuple[int, int]:
    """Return width and height of a box with its text and this number of ports on one side."""
    width = max(text_width(line, size, is_bold=size == TITLE) for line, size in item_lines(item))
    height = 12 + sum(size + 4 for _, size in item_lines(item))
    pad = {"op": 24, "emission": 34, "output": 34}.get(item.shape, 20)
    return max(width + pad, 44), max(height + (8 if item.shape == "state" else 0), PORT_STEP_PX * (ports - 1) + 14)


def item_lines(item: BoxText) -> list[tuple[str, int]]:
    """Return the lines of a box with their font sizes. The component of an op is above it in small text."""
    component, _, name = item.title.rpartition(".") if item.shape == "op" else ("", "", item.title)
    lines = [(component, NOTE), (name, TITLE), (item.note, NOTE)]
    return [(text, size) for text, size in lines if text]
