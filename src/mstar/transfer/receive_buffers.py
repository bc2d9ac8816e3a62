"""Pool of receive buffers for data from other hosts: reused, because faulting in new pages costs more than the copy.

Received arrays are views of the buffer (zero-copy); it is free again when the last of them is garbage-collected. So one
small array keeps its whole buffer alive.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_FREE_BYTES = 256 << 20
"""Maximum bytes of free buffers kept for reuse."""
_MIN_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Buffer:
    memory: mmap.mmap
    size: int
    address: int


class ReceiveBuffers:
    """Buffers to read into. `register_memory` is called for each new one, `unregister_memory` before it is freed."""

    def __init__(self, register_memory: Callable[[int, int], None], unregister_memory: Callable[[int], None]) -> None:
        self._register_memory = register_memory
        self._unregister_memory = unregister_memory
        self._lock = threading.Lock()
        self._free: list[_Buffer] = []
        self._returned: deque[_Buffer] = deque()
        """Filled by finalizers, which run in any thread at any time, also while the lock is held."""
        self._in_use = 0

    def acquire(self, size: int) -> tuple[int, memoryview]:
        """A buffer of at least `size` bytes: its address and a view. Returned to the pool when unreferenced."""
        with self._lock:
            self._collect_returned()
            best_fit = min(
                (buffer for buffer in self._free if buffer.size >= size), key=lambda buffer: buffer.size, default=None
            )
            if best_fit is None:
                # A power of two: pages are allocated on first use, so that rounding up is free.
                best_fit = self._allocate(1 << max(size - 1, _MIN_BUFFER_BYTES - 1).bit_length())
            else:
                self._free.remove(best_fit)
            self._in_use += 1
        lease = (ctypes.c_char * best_fit.size).from_buffer(best_fit.memory)
        weakref.finalize(lease, self._returned.append, best_fit).atexit = False
        return best_fit.address, memoryview(lease).cast("B")

    def in_use(self) -> int:
        """Number of buffers in use."""
        with self._lock:
            self._collect_returned()
            return self._in_use

    def close(self) -> None:
        """Free the pool. Buffers in use stay until their arrays are garbage-collected."""
        with self._lock:
            self._collect_returned()
            for buffer in self._free:
                self._unregister_memory(buffer.address)
            self._free.clear()

    def _allocate(self, size: int) -> _Buffer:
        memory = mmap.mmap(-1, size)
        buffer = _Buffer(memory, size, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        self._register_memory(buffer.address, size)
        return buffer

    def _collect_returned(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._in_use -= 1
        while sum(buffer.size for buffer in self._free) > MAX_FREE_BYTES:
            self._unregister_memory(self._free.pop(0).address)
