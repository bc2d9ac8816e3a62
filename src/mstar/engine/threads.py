"""Threads: how many the libraries use for what runs now. It loads no library; one that is not loaded has none."""

from __future__ import annotations

import sys
from typing import Any


def use_threads(count: int) -> None:
    """Let torch, if it is there, use so many threads. The fused kernels share them."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
