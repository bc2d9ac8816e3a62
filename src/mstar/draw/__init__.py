"""Walk diagrams: layered graph layout (Sugiyama), rendered as SVG, Mermaid text or JSON."""

from mstar.draw.json_export import to_json
from mstar.draw.mermaid import to_mermaid
from mstar.draw.picture import to_picture
from mstar.draw.svg import to_svg

__all__ = ["to_json", "to_mermaid", "to_picture", "to_svg"]
