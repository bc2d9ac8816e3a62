"""Process tuning for long-running servers: garbage collector, GIL switch interval and malloc. Changes no results."""

from __future__ import annotations

import ctypes
import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""GIL switch interval in seconds: a message must not wait for a computing thread (Python default 0.005)."""
GC_THRESHOLDS = (20_000, 20, 1000)
"""Thresholds of the garbage collector. A full collection over the objects of 10,000 streams takes seconds and frees
little, because reference counting already frees the objects of finished requests.
"""
MALLOC_OPTIONS = {-3: 32 << 20, -1: 512 << 20}
"""glibc mallopt options: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes. Tensors up to 32 MB are reused from the heap
instead of being mapped and zeroed by the kernel at each step, and up to 512 MB of freed memory is kept.
"""


def freeze_heap() -> None:
    """Apply the tuning. Call it once, after all models are loaded and before the first request."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # glibc only
        for option, size in MALLOC_OPTIONS.items():
            mallopt(option, size)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()  # exempt long-lived objects from collections
    gc.set_threshold(*GC_THRESHOLDS)
