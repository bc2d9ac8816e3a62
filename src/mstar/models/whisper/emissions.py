"""Sub-walks whose emissions the client does not get."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def discard_emissions(walk_part: Generator[Any, None, Any]) -> Any:
    """Run a sub-walk without emitting its outputs, and return its result."""
    try:
        while True:
            next(walk_part)
    except StopIteration as end:
        return end.value
