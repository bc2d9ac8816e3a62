"""Shared memory for what is too large for a message: one arena per process, written by it and read by its peers.

An arena is one memfd: it has no name in any directory and is gone with its process, however that ends. Its beginning is
a table with an entry for each slot: generation, offset, length, and the generation that was read. The bytes follow. A
descriptor says which slot, and in which generation; the message that carries it is somebody else's business.

A slot is used again only after its reader has marked it as read, or after the peer it was for is forgotten. A reader
that lives on after that finds another generation in the table, before or after it copied, and its mark names one that
is over: it can neither get wrong bytes nor free what is not its own.

Peers on other hosts read the same memory through a store (stores.py), by the same rules.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import mmap
import os
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec

from mstar.errors import ReadFailed

DEFAULT_CAPACITY_BYTES = 256 << 20
"""How many bytes an arena has for what is sent. Memory is taken only where it was used."""

_MEMFD_NAME = "mstar-arena"
_BYTES_PER_SLOT = 16 << 10
"""There is one slot for so many bytes of capacity; below that size nothing should come here."""
_ALIGN_BYTES = 64
_WORD_BYTES = 8
_ARENA_ID, _SLOT_COUNT, _HEADER_WORDS = range(3)
"""The words before the table: which arena it is, and how many slots it has."""
_ENTRY_WORDS = 4
"""The words of a slot's entry in the table."""
_GENERATION, _OFFSET, _LENGTH, _READ = range(_ENTRY_WORDS)
ENTRY_BYTES = _WORD_BYTES * _ENTRY_WORDS
MARK_OFFSET_BYTES = _WORD_BYTES * _READ
"""Where in its entry a reader leaves the generation that it has read."""
_FREE = 0
_POISON = b"\xdb"


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """Where some bytes lie, for exactly one reader."""

    pid: int
    fd: int
    arena: int
    """A number that no other arena has: a process number is used again some day."""
    slot: int
    offset: int
    length: int
    generation: int


@dataclass(frozen=True, slots=True)
class _UsedSlot:
    descriptor: Descriptor
    size: int
    to: Hashable


class Arena:
    """The arena of this process. With `poison` bytes that are freed are overwritten, so that a test sees them used."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY_BYTES, *, poison: bool = False) -> None:
        count = max(1, capacity // _BYTES_PER_SLOT)
        first, capacity = align_up(entry_offset(count)), align_up(capacity)
        self._poison = poison
        self._fd = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, first + capacity)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)  # readers rely on its size
        self.memory = ArenaMemory(self._fd)
        self._key = (os.getpid(), self._fd, secrets.randbits(64))
        self.memory.words[_ARENA_ID], self.memory.words[_SLOT_COUNT] = self._key[2], count
        self._used: dict[int, _UsedSlot] = {}
        self._slots = list(range(count - 1, -1, -1))
        self._gaps = [(first, capacity)]
        """(offset, size) of what is free, in order; no two of them touch."""
        self._reclaim_at = 1
        """At how many used slots it is time to look which were read: so looking costs little for each."""

    def put(self, data: memoryview, to: Hashable) -> Descriptor | None:
        """Copy bytes for a peer; None if there is no room for them now."""
        return self.put_parts((data,), to)

    def put_parts(self, parts: Sequence[memoryview], to: Hashable) -> Descriptor | None:
        """Copy several pieces into one slot, each where `places` says."""
        if len(self._used) >= self._reclaim_at:
            self.reclaim()
        starts, length = layout_parts([len(part) for part in parts])
        size = align_up(length)
        offset = self._allocate(size)
        if offset is None:
            self.reclaim()
            offset = self._allocate(size)
        if offset is None:
            return None
        slot, generation = self._slots.pop(), secrets.randbits(63) + 1
        descriptor = Descriptor(*self._key, slot, offset, length, generation)
        for start, part in zip(starts, parts, strict=True):
            self.memory.view[offset + start : offset + start + len(part)] = part
        words, entry = self.memory.words, _entry_index(slot)
        words[entry + _OFFSET], words[entry + _LENGTH], words[entry + _READ] = offset, length, _FREE
        words[entry + _GENERATION] = generation  # last: from now on it can be read
        self._used[slot] = _UsedSlot(descriptor, size, to)
        return descriptor

    def reclaim(self) -> None:
        """Free what was read."""
        words = self.memory.words
        used = self._used.items()
        read = [slot for slot, one in used if words[_entry_index(slot) + _READ] == one.descriptor.generation]
        for slot in read:
            self._release(slot)
        self._reclaim_at = 2 * len(self._used) + 1

    def forget(self, peer: Hashable) -> None:
        """Free what was for a peer whose life is over."""
        for slot in [slot for slot, used in self._used.items() if used.to == peer]:
            self._release(slot)

    def cancel(self, descriptor: Descriptor) -> None:
        """Free what will not be sent after all."""
        self._release(descriptor.slot)

    def stats(self) -> dict[str, int]:
        """How many slots, and how many bytes of them, are still to be read."""
        self.reclaim()
        return {"slots": len(self._used), "slot_bytes": sum(used.descriptor.length for used in self._used.values())}

    def close(self) -> None:
        """Give the memory up. Who has it open still reads what is there."""
        self.memory.close()
        os.close(self._fd)

    def _allocate(self, size: int) -> int | None:
        """The offset of so many free bytes: the first ones that suffice, as those were used before."""
        if not self._slots:
            return None
        for at, (offset, room) in enumerate(self._gaps):
            if room >= size:
                self._gaps[at : at + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def _release(self, slot: int) -> None:
        used = self._used.pop(slot)
        start, end = used.descriptor.offset, used.descriptor.offset + used.size
        self.memory.words[_entry_index(slot) + _GENERATION] = _FREE  # first: from now on it cannot be read
        if self._poison:
            self.memory.view[start:end] = _POISON * used.size
        self._slots.append(slot)
        at = bisect.bisect(self._gaps, (start, 0))
        if at < len(self._gaps) and self._gaps[at][0] == end:
            end += self._gaps.pop(at)[1]
        if at and sum(self._gaps[at - 1]) == start:
            at -= 1
            start = self._gaps.pop(at)[0]
        self._gaps.insert(at, (start, end - start))


class ArenaReader:
    """The arenas of other processes, each opened when something is first read from it."""

    def __init__(self) -> None:
        self._arenas: dict[Hashable, tuple[tuple[int, int, int], ArenaMemory]] = {}

    def read(self, descriptor: Descriptor, sender: Hashable) -> bytearray:
        """A copy of what a sender has put, and its slot is free. Raises ReadFailed unless it is that for certain."""
        memory = self._open_arena(descriptor, sender)
        slot, start, length, generation = descriptor.slot, descriptor.offset, descriptor.length, descriptor.generation
        if not memory.holds(slot, generation, start, length):
            raise read_failure(length, sender, "they were read before, or given up")
        data = bytearray(memory.view[start : start + length])
        if not memory.holds(slot, generation, start, length):
            raise read_failure(length, sender, "they were given up while they were read")
        memory.mark_read(slot, generation)
        return data

    def forget(self, peer: Hashable) -> None:
        """Close the arena of a peer whose life is over."""
        if (known := self._arenas.pop(peer, None)) is not None:
            known[1].close()

    def close(self) -> None:
        """Close all arenas."""
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
                raise FileNotFoundError("it has no arena there")
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
            raise read_failure(descriptor.length, sender, "its arena is another one now")
        self._arenas[sender] = key, memory
        return memory


class ArenaMemory:
    """An arena's memory, as bytes and as words."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 0)
        self.view = memoryview(self._map)
        self.words = self.view.cast("Q")

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def holds(self, slot: int, generation: int, offset: int, length: int) -> bool:
        """Whether a slot holds exactly this, unread."""
        if not 0 <= slot < self.words[_SLOT_COUNT]:
            return False
        entry = _entry_index(slot)
        return is_unread(self.words[entry : entry + _ENTRY_WORDS], generation, offset, length)

    def mark_read(self, slot: int, generation: int) -> None:
        """This generation of a slot was read."""
        self.words[_entry_index(slot) + _READ] = generation

    def close(self) -> None:
        """Unmap it."""
        self.words.release()
        self.view.release()
        self._map.close()


def _entry_index(slot: int) -> int:
    """The first word of a slot's entry in the table."""
    return _HEADER_WORDS + _ENTRY_WORDS * slot


def entry_offset(slot: int) -> int:
    """Where a slot's entry in the table begins, in bytes."""
    return _WORD_BYTES * _entry_index(slot)


def is_unread(entry: memoryview, generation: int, offset: int, length: int) -> bool:
    """Whether these words of the table say so. A mark that names another generation came too late, for what was there
    before."""
    return entry[:_READ].tolist() == [generation, offset, length] and entry[_READ] != generation


def align_up(size: int) -> int:
    """How many bytes something takes in an arena."""
    return -(-max(size, 1) // _ALIGN_BYTES) * _ALIGN_BYTES


def layout_parts(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where each of several pieces begins that lie in one slot, and how long they are together."""
    starts: list[int] = []
    end = 0
    for length in lengths:
        starts.append(align_up(end) if end else 0)
        end = starts[-1] + length
    return starts, end


def read_failure(length: int, sender: Hashable, reason: str) -> ReadFailed:
    """What is said when bytes cannot be had."""
    what = f"{length} bytes of {sender} cannot be read: {reason}"
    return ReadFailed(f"{what}\n  fix: none here; whoever needs them must ask for them again")
