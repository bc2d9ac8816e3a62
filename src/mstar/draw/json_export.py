"""The JSON form of a picture, so that a browser can draw the same one. It is written here and never read back."""

from __future__ import annotations

import json
from dataclasses import asdict

from mstar.draw.picture import Picture


def to_json(picture: Picture) -> str:
    """The picture as one line of JSON: its dataclasses as objects, a path as a list of points and curves."""
    return json.dumps(asdict(picture), ensure_ascii=False, separators=(",", ":"))
