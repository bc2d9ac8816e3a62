"""Shared-memory arena: one memfd per process, written by its owner and read by its peers, for large arrays.

A memfd has no path and disappears with its process. It starts with a table of slots (generation, offset, length,
generation that was read), followed by the data. A `Descriptor` in a message names a slot and its generation.

A slot is reused only after its reader has marked it as read, or its peer is forgotten. A forgotten peer that still runs
sees another generation in the table, before or after its copy, and its mark names an old generation: it can neither get
wrong bytes nor free a slot that is in use.

Peers on other hosts read the same memory through a `remote_store`, by the same rules.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from mstar.errors import ReadFailed

DEFAULT_CAPACITY_BYTES = 256 << 20
"""Capacity of an arena in bytes. Pages are allocated on first use."""

_MEMFD_NAME = "mstar-arena"
_BYTES_PER_SLOT = 16 << 10
"""Capacity per slot in bytes; smaller arrays should be sent inline."""
_ALIGN_BYTES = 64
_RESERVE_BYTES = 64 << 10
"""Bytes beyond the capacity for slots that keep something: a full arena still has room for references."""
_WORD_BYTES = 8
_ARENA_ID = 0
"""Word of the header: random id of the arena."""
_SLOT_COUNT = 1
"""Word of the header: number of slots."""
_HEADER_WORDS = 2
_ENTRY_WORDS = 4
"""Number of words of a slot in the table."""
_GENERATION = 0
_OFFSET = 1
_LENGTH = 2
_READ = 3
ENTRY_BYTES = _WORD_BYTES * _ENTRY_WORDS
MARK_OFFSET_BYTES = _WORD_BYTES * _READ
"""Offset of the read mark in a table entry."""
_FREE = 0
_POISON = b"\xdb"


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """Location of some bytes, for exactly one reader."""

    pid: int
    fd: int
    arena: int
    """Random id of the arena: process ids are reused."""
    slot: int
    offset: int
    length: int
    generation: int


@dataclass(frozen=True, slots=True)
class _UsedSlot:
    descriptor: Descriptor
    size: int
    to: Hashable
    keep: object
    """What must exist until the slot is read."""
    on_read: Callable[[], None] | None
    """Called when the slot was read, not when its peer is forgotten."""


class Arena:
    """The arena of this process. `poison` overwrites freed bytes, so that tests detect use after free."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY_BYTES, *, poison: bool = False) -> None:
        count = max(1, capacity // _BYTES_PER_SLOT)
        first, capacity = align_up(entry_offset(count)), align_up(capacity)
        self._poison = poison
        self._fd = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, first + capacity + _RESERVE_BYTES)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)  # readers rely on the size
        self.memory = ArenaMemory(self._fd)
        self._key = (os.getpid(), self._fd, secrets.randbits(64))
        self.memory.words[_ARENA_ID], self.memory.words[_SLOT_COUNT] = self._key[2], count
        self._used: dict[int, _UsedSlot] = {}
        self._slots = list(range(count - 1, -1, -1))
        self._gaps = [(first, capacity + _RESERVE_BYTES)]
        """(offset, size) of free ranges, sorted and coalesced."""
        self._free_bytes = capacity
        """Free bytes without the reserve; below 0 if the reserve is used."""
        self._reclaim_at = 1
        """Number of used slots that triggers the next `reclaim` (amortized cost)."""

    def put(
        self, data: memoryview, to: Hashable, *, keep: object = None, on_read: Callable[[], None] | None = None
    ) -> Descriptor | None:
        """Copy bytes for a peer; None if the arena is full. `keep` is kept until they are read."""
        return self.put_parts((data,), to, keep=keep, on_read=on_read)

    def put_parts(
        self,
        parts: Sequence[memoryview],
        to: Hashable,
        *,
        keep: object = None,
        on_read: Callable[[], None] | None = None,
    ) -> Descriptor | None:
        """Copy several parts into one slot, at the offsets of `layout_parts`; None if the arena is full."""
        if len(self._used) >= self._reclaim_at:
            self.reclaim()
        starts, length = layout_parts([len(part) for part in parts])
        size = align_up(length)
        min_free = size if keep is None else -_RESERVE_BYTES
        if (offset := self._allocate(size, min_free)) is None:
            self.reclaim()
            offset = self._allocate(size, min_free)
        if offset is None:
            return None
        slot, generation = self._slots.pop(), secrets.randbits(63) + 1
        descriptor = Descriptor(*self._key, slot, offset, length, generation)
        for start, part in zip(starts, parts, strict=True):
            self.memory.view[offset + start : offset + start + len(part)] = part
        words, entry = self.memory.words, _entry_index(slot)
        words[entry + _OFFSET], words[entry + _LENGTH], words[entry + _READ] = offset, length, _FREE
        words[entry + _GENERATION] = generation  # last: publishes the slot
        self._used[slot] = _UsedSlot(descriptor, size, to, keep, on_read)
        return descriptor

    def reclaim(self) -> None:
        """Free slots that were read."""
        words = self.memory.words
        used = self._used.items()
        read = [slot for slot, entry in used if words[_entry_index(slot) + _READ] == entry.descriptor.generation]
        for slot in read:
            if (on_read := self._used[slot].on_read) is not None:
                on_read()
            self._release(slot)
        self._reclaim_at = 2 * len(self._used) + 1

    def forget(self, peer: Hashable) -> None:
        """Free all slots of a dead peer."""
        for slot in [slot for slot, used in self._used.items() if used.to == peer]:
            self._release(slot)

    def cancel(self, descriptor: Descriptor) -> None:
        """Free a slot that will not be sent."""
        self._release(descriptor.slot)

    def stats(self) -> dict[str, int]:
        """Number and bytes of unread slots."""
        self.reclaim()
        return {"slots": len(self._used), "slot_bytes": sum(used.descriptor.length for used in self._used.values())}

    def close(self) -> None:
        """Close the memory. Processes that have it mapped can still read."""
        self.memory.close()
        os.close(self._fd)

    def _allocate(self, size: int, min_free: int) -> int | None:
        """First-fit allocation: offset of a free range, or None. Low offsets come first: their pages exist already."""
        if not self._slots or self._free_bytes < min_free:
            return None
        for index, (offset, available) in enumerate(self._gaps):
            if available >= size:
                self._gaps[index : index + 1] = [(offset + size, available - size)] if available > size else []
                self._free_bytes -= size
                return offset
        return None

    def _release(self, slot: int) -> None:
        used = self._used.pop(slot)
        start, end = used.descriptor.offset, used.descriptor.offset + used.size
        self.memory.words[_entry_index(slot) + _GENERATION] = _FREE  # first: unpublishes the slot
        if self._poison:
            self.memory.view[start:end] = _POISON * used.size
        self._slots.append(slot)
        self._free_bytes += used.size
        index = bisect.bisect(self._gaps, (start, 0))
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == start:
            index -= 1
            start = self._gaps.pop(index)[0]
        self._gaps.insert(index, (start, end - start))


class ArenaReader:
    """Arenas of other processes, mapped on first use."""

    def __init__(self) -> None:
        self._arenas: dict[Hashable, tuple[tuple[int, int, int], ArenaMemory]] = {}

    def read(self, descriptor: Descriptor, sender: Hashable) -> bytearray:
        """Copy the bytes of a slot and mark it as read. Raises ReadFailed if they changed or are gone."""
        data, mark_read = self.peek(descriptor, sender)
        mark_read()
        return data

    def peek(self, descriptor: Descriptor, sender: Hashable) -> tuple[bytearray, Callable[[], None]]:
        """Copy the bytes of a slot. Raises ReadFailed if they changed or are gone.

        The sender keeps what belongs to the slot until the returned function marks it as read, from any thread.
        """
        memory = self._open_arena(descriptor, sender)
        slot, start, length, generation = descriptor.slot, descriptor.offset, descriptor.length, descriptor.generation
        if not memory.holds(slot, generation, start, length):
            raise read_failure(length, sender, "they were already read or freed")
        data = bytearray(memory.view[start : start + length])
        if not memory.holds(slot, generation, start, length):
            raise read_failure(length, sender, "they were freed during the read")
        return data, partial(memory.mark_read, slot, generation)

    def forget(self, peer: Hashable) -> None:
        """Unmap the arena of a dead peer."""
        if (known := self._arenas.pop(peer, None)) is not None:
            known[1].close()

    def close(self) -> None:
        """Unmap all arenas."""
        for peer in list(self._arenas):
            self.forget(peer)

    def _open_arena(self, descriptor: Descriptor, sender: Hashable) -> ArenaMemory:
        key = (descriptor.pid, descriptor.fd, descriptor.arena)
        known = self._arenas.get(sender)
        if known is not None and known[0] == key:
            return known[1]
        self.forget(sender)
        path = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
        try:
            if os.readlink(path) != f"/memfd:{_MEMFD_NAME} (deleted)":
                raise FileNotFoundError("not an arena")
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                memory = ArenaMemory(fd)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise read_failure(
                descriptor.length, sender, f"its arena cannot be opened ({type(error).__name__})"
            ) from error
        if memory.words[_ARENA_ID] != descriptor.arena:
            memory.close()
            raise read_failure(descriptor.length, sender, "its arena was replaced")
        self._arenas[sender] = key, memory
        return memory


class ArenaMemory:
    """Mapped memory of an arena, as bytes and as 64-bit words."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 0)
        self.view = memoryview(self._map)
        self.words = self.view.cast("Q")

    @property
    def address(self) -> int:
        """Address in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def holds(self, slot: int, generation: int, offset: int, length: int) -> bool:
        """Whether a slot holds exactly this, unread."""
        if not 0 <= slot < self.words[_SLOT_COUNT]:
            return False
        entry = _entry_index(slot)
        return is_unread(self.words[entry : entry + _ENTRY_WORDS], generation, offset, length)

    def mark_read(self, slot: int, generation: int) -> None:
        """Mark a generation of a slot as read. Without effect on closed memory, whose owner is forgotten."""
        with suppress(ValueError):
            self.words[_entry_index(slot) + _READ] = generation

    def close(self) -> None:
        """Unmap the memory."""
        self.words.release()
        self.view.release()
        self._map.close()


def _entry_index(slot: int) -> int:
    """Index of the first word of a slot in the table."""
    return _HEADER_WORDS + _ENTRY_WORDS * slot


def entry_offset(slot: int) -> int:
    """Byte offset of a slot in the table."""
    return _WORD_BYTES * _entry_index(slot)


def is_unread(entry: memoryview, generation: int, offset: int, length: int) -> bool:
    """Whether a table entry matches and is unread. A mark with another generation is a late one, of a previous use."""
    return entry[:_READ].tolist() == [generation, offset, length] and entry[_READ] != generation


def align_up(size: int) -> int:
    """Size in the arena, rounded up to the alignment."""
    return -(-max(size, 1) // _ALIGN_BYTES) * _ALIGN_BYTES


def layout_parts(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of several parts in one slot, and their total length."""
    starts: list[int] = []
    end = 0
    for length in lengths:
        starts.append(align_up(end) if end else 0)
        end = starts[-1] + length
    return starts, end


def read_failure(length: int, sender: Hashable, reason: str) -> ReadFailed:
    """The error for bytes that cannot be read."""
    what = f"cannot read {length} bytes from {sender}: {reason}"
    return ReadFailed(f"{what}\n  fix: none needed, the request is retried; if it persists, check the sender")
