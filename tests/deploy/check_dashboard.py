"""Check a dashboard against Grafana's schema: a round trip through the SDK must lose no field."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost_fields(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Fields that were lost or changed."""
    if isinstance(before, dict):
        for key, value in before.items():
            if value not in (None, [], {}):  # empty values can be omitted
                yield from lost_fields(value, after.get(key) if isinstance(after, dict) else None, f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost_fields(one, other, f"{at}[{index}]")
    elif before != after:
        yield f"{at}: {before!r} became {after!r}"


if __name__ == "__main__":
    register_default_plugins()
    board = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    after = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    sys.exit("\n".join(lost_fields(board, after)) or 0)
