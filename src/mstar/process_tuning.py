"""What a process that serves for long asks of its interpreter and of the C library. No program could see a change."""

from __future__ import annotations

import ctypes
import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""Seconds after which a thread that waits for the interpreter gets it: messages must not wait for what computes."""
GC_THRESHOLDS = (20_000, 20, 1000)
"""Thresholds of the garbage collector. A full collection looks at all that ten thousand streams hold, for seconds, and
finds little, because what requests leave behind is freed by counting."""
MALLOC_OPTIONS = {-3: 32 << 20, -1: 512 << 20}
"""What glibc is told (its M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes): tensors of up to 32 MB, which steps make
and free again, are not mapped anew each time, and half a gigabyte that was freed is kept for the next. Else the kernel
clears their pages at each step."""


def freeze_heap() -> None:
    """Everything is loaded, and requests come from here on."""
    if (tell := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # another C library has its own ways
        for number, size in MALLOC_OPTIONS.items():
            tell(number, size)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()  # what is there stays: a collection need not look at it each time
    gc.set_threshold(*GC_THRESHOLDS)
