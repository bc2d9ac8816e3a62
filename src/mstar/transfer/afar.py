"""Arrays for other hosts, and from them.

All arrays of a value lie in one slot of the sender's arena, so that they move in one transfer. The far end reads the
slot by the store that both have: Mooncake's transfer engine where it is installed, else connections of our own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from mstar.transfer.arena import CAPACITY, ENTRY_BYTES, Arena, Descriptor, aligned, lost, places
from mstar.transfer.errors import ReadFailed
from mstar.transfer.landing import Landings
from mstar.transfer.mooncake import MooncakeStore
from mstar.transfer.stores import Far, Stale, Store, Unreached
from mstar.transfer.tcp import TcpStore

_LARGEST = 64 * CAPACITY


@dataclass(frozen=True, slots=True)
class Reach:
    """How one process takes part in traffic between hosts: its own address there, the deployment's key, and who is on
    this host. `store` is "mooncake" or "tcp"; if it is empty, Mooncake where it can be imported."""

    ip: str
    key: bytes
    is_here: Callable[[Any], bool]
    store: str = ""


class Afar:
    """The other hosts, as this process's arrays see them."""

    def __init__(self, reach: Reach, arena: Arena) -> None:
        self._is_here = reach.is_here
        self._base = arena.memory.address
        self._store = _opened(reach, arena)
        self._landings = Landings(self._store.admit, self._store.dismiss)
        self._lock = threading.Lock()
        self._owed: dict[str, list[Far]] = {}
        """By store, what could not be read and is to be freed there when it answers again."""
        self._stores: dict[Hashable, str] = {}
        """The store of each peer that was read from."""

    def is_here(self, peer: Hashable) -> bool:
        """Whether a peer is on this host."""
        return self._is_here(peer)

    def sign(self, descriptor: Descriptor, parts: tuple[int, ...]) -> Far:
        """What the far end has to know of a slot."""
        own = descriptor
        return Far(self._store.name, self._base, own.slot, own.offset, own.length, own.generation, parts)

    def fetch(self, far: Far, sender: Hashable) -> list[memoryview]:
        """The arrays of a value as bytes; waits for seconds at most. Raises ReadFailed."""
        starts, end = places(far.parts)
        if far.store.partition(" ")[0] != self._store.name.partition(" ")[0]:
            fix = "install the same extras on every host"
            raise ReadFailed(f"{sender} sends by {far.store!r}, this process has {self._store.name!r}\n  fix: {fix}")
        if end != far.length or not 0 < end <= _LARGEST:
            raise lost(far.length, sender, f"arrays of {list(far.parts)} bytes do not lie there")
        self._stores[sender] = far.store
        address, memory = self._landings.lend(aligned(end) + ENTRY_BYTES)
        try:
            self._store.read(far, address, memory)
        except Stale:
            raise lost(end, sender, "they were read before, or given up") from None
        except Unreached as error:
            with self._lock:
                self._owed.setdefault(far.store, []).append(far)
            raise lost(end, sender, f"its store {far.store!r} does not give them ({error})") from error
        self._settle(far.store)
        return [memory[start : start + length] for start, length in zip(starts, far.parts, strict=True)]

    def forget(self, peer: Hashable) -> None:
        """That life is over: close what leads to it."""
        if (store := self._stores.pop(peer, None)) is not None:
            with self._lock:
                self._owed.pop(store, None)
            self._store.forget(store.partition(" ")[2])

    def lent(self) -> int:
        """How many values from other hosts are still in use here."""
        return self._landings.lent()

    def close(self) -> None:
        """End all threads and connections."""
        self._landings.close()
        self._store.close()

    def _settle(self, store: str) -> None:
        """Free what was owed to a store that answers."""
        with self._lock:
            owed = self._owed.pop(store, [])
        for at, far in enumerate(owed):
            try:
                self._store.free(far)
            except Unreached:
                with self._lock:
                    self._owed.setdefault(store, []).extend(owed[at:])
                return


def _opened(reach: Reach, arena: Arena) -> Store:
    if reach.store != "tcp":
        try:
            return MooncakeStore(reach.ip, arena.memory)
        except ImportError:
            if reach.store:
                raise
    return TcpStore(reach.ip, reach.key, arena.memory)
