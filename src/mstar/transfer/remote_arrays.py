"""Arrays for other hosts, and from them.

All arrays of a value lie in one slot of the sender's arena, so that they move in one transfer. The far end reads the
slot by the store that both have: Mooncake's transfer engine where it is installed, else connections of our own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from mstar.errors import ReadFailed
from mstar.transfer.arena import (
    DEFAULT_CAPACITY_BYTES,
    ENTRY_BYTES,
    Arena,
    Descriptor,
    align_up,
    layout_parts,
    read_failure,
)
from mstar.transfer.mooncake import MooncakeStore
from mstar.transfer.receive_buffers import ReceiveBuffers
from mstar.transfer.remote_store import PeerUnreachable, RemoteSlot, RemoteStore, StaleSlot
from mstar.transfer.tcp import TcpStore

_MAX_VALUE_BYTES = 64 * DEFAULT_CAPACITY_BYTES


@dataclass(frozen=True, slots=True)
class HostEndpoint:
    """How one process takes part in traffic between hosts: its own address there, the deployment's key, and who is on
    this host. `store` is "mooncake" or "tcp"; if it is empty, Mooncake where it can be imported."""

    ip: str
    key: bytes
    is_local: Callable[[Any], bool]
    store_kind: str = ""


class RemoteArrays:
    """The other hosts, as this process's arrays see them."""

    def __init__(self, endpoint: HostEndpoint, arena: Arena) -> None:
        self._is_local = endpoint.is_local
        self._arena_address = arena.memory.address
        self._store = _open_store(endpoint, arena)
        self._buffers = ReceiveBuffers(self._store.register_memory, self._store.unregister_memory)
        self._lock = threading.Lock()
        self._unfreed: dict[str, list[RemoteSlot]] = {}
        """By store, what could not be read and is to be freed there when it answers again."""
        self._store_by_peer: dict[Hashable, str] = {}
        """The store of each peer that was read from."""

    def is_local(self, peer: Hashable) -> bool:
        """Whether a peer is on this host."""
        return self._is_local(peer)

    def to_remote_slot(self, descriptor: Descriptor, parts: tuple[int, ...]) -> RemoteSlot:
        """What the far end has to know of a slot."""
        own = descriptor
        return RemoteSlot(
            self._store.name, self._arena_address, own.slot, own.offset, own.length, own.generation, parts
        )

    def fetch(self, slot: RemoteSlot, sender: Hashable) -> list[memoryview]:
        """The arrays of a value as bytes; waits for seconds at most. Raises ReadFailed."""
        starts, end = layout_parts(slot.parts)
        if slot.store.partition(" ")[0] != self._store.name.partition(" ")[0]:
            fix = "install the same extras on every host"
            raise ReadFailed(f"{sender} sends by {slot.store!r}, this process has {self._store.name!r}\n  fix: {fix}")
        if end != slot.length or not 0 < end <= _MAX_VALUE_BYTES:
            raise read_failure(slot.length, sender, f"arrays of {list(slot.parts)} bytes do not lie there")
        self._store_by_peer[sender] = slot.store
        address, memory = self._buffers.acquire(align_up(end) + ENTRY_BYTES)
        try:
            self._store.read(slot, address, memory)
        except StaleSlot:
            raise read_failure(end, sender, "they were read before, or given up") from None
        except PeerUnreachable as error:
            with self._lock:
                self._unfreed.setdefault(slot.store, []).append(slot)
            raise read_failure(end, sender, f"its store {slot.store!r} does not give them ({error})") from error
        self._free_pending(slot.store)
        return [memory[start : start + length] for start, length in zip(starts, slot.parts, strict=True)]

    def forget(self, peer: Hashable) -> None:
        """That life is over: close what leads to it."""
        if (store := self._store_by_peer.pop(peer, None)) is not None:
            with self._lock:
                self._unfreed.pop(store, None)
            self._store.forget(store.partition(" ")[2])

    def buffers_in_use(self) -> int:
        """How many values from other hosts are still in use here."""
        return self._buffers.in_use()

    def close(self) -> None:
        """End all threads and connections."""
        self._buffers.close()
        self._store.close()

    def _free_pending(self, store: str) -> None:
        """Free what was owed to a store that answers."""
        with self._lock:
            owed = self._unfreed.pop(store, [])
        for at, far in enumerate(owed):
            try:
                self._store.free(far)
            except PeerUnreachable:
                with self._lock:
                    self._unfreed.setdefault(store, []).extend(owed[at:])
                return


def _open_store(endpoint: HostEndpoint, arena: Arena) -> RemoteStore:
    if endpoint.store_kind != "tcp":
        try:
            return MooncakeStore(endpoint.ip, arena.memory)
        except ImportError:
            if endpoint.store_kind:
                raise
    return TcpStore(endpoint.ip, endpoint.key, arena.memory)
