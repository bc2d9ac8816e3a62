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

KEPT = 256 << 20
"""How many bytes of free memory are kept for what comes next."""
_LEAST = 1 << 20


@dataclass(frozen=True, slots=True)
class _Field:
    memory: mmap.mmap
    size: int
    address: int


class Landings:
    """Memory to read into. `admit` is told of each new piece, by address and size, and `dismiss` when it goes."""

    def __init__(self, admit: Callable[[int, int], None], dismiss: Callable[[int], None]) -> None:
        self._admit = admit
        self._dismiss = dismiss
        self._lock = threading.Lock()
        self._free: list[_Field] = []
        self._back: deque[_Field] = deque()
        """What is garbage is noticed in any thread and at any moment, also while the lock is held."""
        self._lent = 0

    def lend(self, size: int) -> tuple[int, memoryview]:
        """At least so many bytes, by address and as they are; free again when nothing refers to them any more."""
        with self._lock:
            self._gather()
            fit = min((one for one in self._free if one.size >= size), key=lambda one: one.size, default=None)
            if fit is None:
                fit = self._new(1 << max(size - 1, _LEAST - 1).bit_length())  # only what is touched takes memory
            else:
                self._free.remove(fit)
            self._lent += 1
        lease = (ctypes.c_char * fit.size).from_buffer(fit.memory)
        weakref.finalize(lease, self._back.append, fit).atexit = False
        return fit.address, memoryview(lease).cast("B")

    def lent(self) -> int:
        """How many pieces are in use."""
        with self._lock:
            self._gather()
            return self._lent

    def close(self) -> None:
        """Keep nothing. What is in use stays until its arrays are garbage."""
        with self._lock:
            self._gather()
            for field in self._free:
                self._dismiss(field.address)
            self._free.clear()

    def _new(self, size: int) -> _Field:
        memory = mmap.mmap(-1, size)
        field = _Field(memory, size, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        self._admit(field.address, size)
        return field

    def _gather(self) -> None:
        while self._back:
            self._free.append(self._back.popleft())
            self._lent -= 1
        while sum(field.size for field in self._free) > KEPT:
            self._dismiss(self._free.pop(0).address)
