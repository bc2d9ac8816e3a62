"""Where bytes from other hosts land: memory that is used again, as touching new memory costs more than the bytes do.

What lands is not copied: the arrays of a value lie in the memory that was read into, and it is free again when the last
of them is garbage. So one small array that is kept keeps all that came with it.
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
"""How many bytes of free memory are kept for what comes next."""
_MIN_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Buffer:
    memory: mmap.mmap
    size: int
    address: int


class ReceiveBuffers:
    """Memory to read into. `admit` is told of each new piece, by address and size, and `dismiss` when it goes."""

    def __init__(self, register_memory: Callable[[int, int], None], unregister_memory: Callable[[int], None]) -> None:
        self._register_memory = register_memory
        self._unregister_memory = unregister_memory
        self._lock = threading.Lock()
        self._free: list[_Buffer] = []
        self._returned: deque[_Buffer] = deque()
        """What is garbage is noticed in any thread and at any moment, also while the lock is held."""
        self._in_use = 0

    def acquire(self, size: int) -> tuple[int, memoryview]:
        """At least so many bytes, by address and as they are; free again when nothing refers to them any more."""
        with self._lock:
            self._collect_returned()
            fit = min((one for one in self._free if one.size >= size), key=lambda one: one.size, default=None)
            if fit is None:
                fit = self._allocate(
                    1 << max(size - 1, _MIN_BUFFER_BYTES - 1).bit_length()
                )  # only what is touched takes memory
            else:
                self._free.remove(fit)
            self._in_use += 1
        lease = (ctypes.c_char * fit.size).from_buffer(fit.memory)
        weakref.finalize(lease, self._returned.append, fit).atexit = False
        return fit.address, memoryview(lease).cast("B")

    def in_use(self) -> int:
        """How many pieces are in use."""
        with self._lock:
            self._collect_returned()
            return self._in_use

    def close(self) -> None:
        """Keep nothing. What is in use stays until its arrays are garbage."""
        with self._lock:
            self._collect_returned()
            for field in self._free:
                self._unregister_memory(field.address)
            self._free.clear()

    def _allocate(self, size: int) -> _Buffer:
        memory = mmap.mmap(-1, size)
        field = _Buffer(memory, size, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        self._register_memory(field.address, size)
        return field

    def _collect_returned(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._in_use -= 1
        while sum(field.size for field in self._free) > MAX_FREE_BYTES:
            self._unregister_memory(self._free.pop(0).address)
