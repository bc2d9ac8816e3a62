"""Thread count of numeric libraries. It imports none: a library that is not loaded runs no threads."""

from __future__ import annotations

import sys
from typing import Any


def use_threads(count: int) -> None:
    """Set torch's intra-op thread count, which the fused kernels share."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
