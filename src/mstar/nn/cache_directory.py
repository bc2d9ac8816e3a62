"""Directory of what mstar computes once per machine: compiled kernels, captured graphs and checksums."""

from __future__ import annotations

from pathlib import Path


def cache_directory() -> Path:
    """The directory; it need not exist or be writable. Raises RuntimeError without a home directory."""
    return Path.home() / ".cache" / "mstar"
