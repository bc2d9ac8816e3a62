"""Process tuning for long-running servers (garbage collector, GIL switch interval, malloc), titles and usage.

Changes no results.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

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

_PR_SET_NAME = 15
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ZEROMQ_THREAD = "ZMQbg/"


def freeze_heap() -> None:
    """Apply the tuning. Call it once, after all models are loaded and before the first request."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if (mallopt := getattr(libc, "mallopt", None)) is not None:  # glibc only
        libc.malloc_trim(0)  # return the memory of loading, such as weights that were replaced by packed ones
        for option, size in MALLOC_OPTIONS.items():
            mallopt(option, size)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()  # exempt long-lived objects from collections
    gc.set_threshold(*GC_THRESHOLDS)


def set_process_title(title: str) -> None:
    """Set the title that ps and top show, over the memory of the command line; a longer title is cut off."""
    fields = _stat_fields()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    size = end - start
    if size > 0:
        # The kernel reads the command line of a process from its memory.
        ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)
    name = title.removeprefix("mstar: ").encode()[:15]  # the limit of the kernel
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def process_usage() -> dict[str, int]:
    """Process id, resident memory in bytes, CPU time in microseconds, open files and threads of this process."""
    return {
        "pid": os.getpid(),
        "rss_bytes": int(_stat_fields()[21]) * _PAGE_BYTES,
        "cpu_us": time.process_time_ns() // 1000,
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def native_threads_cpu_us() -> int:
    """CPU time in microseconds of the threads that libraries compute with, such as the OpenMP threads of torch.

    These are all threads that Python did not start, without those of ZeroMQ. It decreases when such a thread ends.
    """
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        if task.name in python_threads:
            continue
        with suppress(OSError):  # the thread has ended
            name, _, fields = task.joinpath("stat").read_text().partition("(")[2].rpartition(")")
            user, system = fields.split()[11:13]
            ticks += 0 if name.startswith(_ZEROMQ_THREAD) else int(user) + int(system)
    return ticks * 1_000_000 // _CLOCK_TICKS_PER_S


def _stat_fields() -> list[str]:
    """Fields of /proc/self/stat after the name of the process, which can contain spaces."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()
