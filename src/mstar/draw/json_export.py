"""JSON export of a picture, for rendering in a browser. There is no import."""

from __future__ import annotations

import json
from dataclasses import asdict

from mstar.draw.picture import Picture


def to_json(picture: Picture) -> str:
    """Serialize the picture as one line of JSON. A path is a list of points and curves."""
    return json.dumps(asdict(picture), ensure_ascii=False, separators=(",", ":"))
