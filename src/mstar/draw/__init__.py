"""Draws a walk: as a laid out picture, as SVG, as Mermaid text and as JSON."""

from mstar.draw.jsonform import to_json
from mstar.draw.mermaid import to_mermaid
from mstar.draw.picture import picture
from mstar.draw.svg import to_svg

__all__ = ["picture", "to_json", "to_mermaid", "to_svg"]
