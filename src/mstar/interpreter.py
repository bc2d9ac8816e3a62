"""What a process that serves for long asks of its interpreter. It changes nothing that a program could see."""

from __future__ import annotations

import gc
import sys

SWITCH_S = 0.0005
"""Seconds after which a thread that waits for the interpreter gets it: messages must not wait for what computes."""
COLLECTIONS = (20_000, 20, 1000)
"""Thresholds of the garbage collector. A full collection looks at all that ten thousand streams hold, for seconds, and
finds little, because what requests leave behind is freed by counting."""


def settle() -> None:
    """Everything is loaded, and requests come from here on."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there stays: a collection need not look at it each time
    gc.set_threshold(*COLLECTIONS)
