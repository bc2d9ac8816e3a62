"""Progress callbacks for reading weights: a line on the terminal, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with how much is done, and the total: bytes of weights that are read, or layers that are compressed."""


def print_progress(done: int, total: int) -> None:
    """Overwrite one line on the terminal with the number of megabytes read."""
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rread {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of weights{end}")
    sys.stderr.flush()


def ignore_progress(_done: int, _total: int) -> None:
    """Report nothing."""
