"""Limits of device memory that workers and `mstar plan` share. Imports no tensor library."""

from __future__ import annotations

DEFAULT_SHARE = 0.85
"""Share of the device that a worker uses if its placement has no `memory`."""
MIN_POSITIONS = 256
"""Minimum number of positions of a KV cache that is sized from memory; a smaller one is refused."""


def format_bytes(count: float) -> str:
    """Bytes in decimal units, such as 16.1 GB."""
    for unit in ("bytes", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
