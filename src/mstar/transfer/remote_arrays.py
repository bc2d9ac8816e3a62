"""Array transfer between hosts.

All arrays of a value are in one slot of the sender's arena, so that they move in one transfer; with Mooncake, exports
are read where they are. The receiver reads the slot through a remote store: Mooncake's transfer engine if it is
installed, else TCP.
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
from mstar.transfer.remote_store import PeerUnreachable, RemoteExport, RemoteSlot, RemoteStore, StaleSlot
from mstar.transfer.segment_pool import SegmentPool
from mstar.transfer.tcp import TcpStore

_MAX_VALUE_BYTES = 64 * DEFAULT_CAPACITY_BYTES
"""Maximum size of the arrays of one value: guards against invalid descriptors."""


@dataclass(frozen=True, slots=True)
class HostEndpoint:
    """Endpoint of a process for other hosts: its IP address, the deployment key, and which peers are local.

    `store_kind` is "mooncake" or "tcp"; empty: Mooncake if it can be imported.
    """

    ip: str
    key: bytes
    is_local: Callable[[Any], bool]
    store_kind: str = ""


class RemoteArrays:
    """Sends arrays to and receives arrays from other hosts."""

    def __init__(self, endpoint: HostEndpoint, arena: Arena) -> None:
        self._is_local = endpoint.is_local
        self._arena_address = arena.memory.address
        self._store = _open_store(endpoint, arena)
        self._buffers = ReceiveBuffers(self._store.register_memory, self._store.unregister_memory)
        self.exports = SegmentPool(self._store.serve_memory, self._store.stop_serving)
        """Memory for large arrays, served to other hosts if the store does that."""
        self.serves_exports = self._store.serves_exports
        self._lock = threading.Lock()
        self._unfreed: dict[str, list[RemoteSlot]] = {}
        """Slots that could not be read, by store: freed when the store answers again."""
        self._store_by_peer: dict[Hashable, str] = {}
        """Store of each peer that was read from."""

    def is_local(self, peer: Hashable) -> bool:
        """Whether a peer is on this host."""
        return self._is_local(peer)

    def to_remote_slot(
        self, descriptor: Descriptor, parts: tuple[int, ...], exports: tuple[RemoteExport, ...]
    ) -> RemoteSlot:
        """Descriptor of a slot for a reader on another host."""
        return RemoteSlot(
            self._store.name,
            self._arena_address,
            descriptor.slot,
            descriptor.offset,
            descriptor.length,
            descriptor.generation,
            parts,
            exports,
        )

    def fetch(self, slot: RemoteSlot, sender: Hashable) -> list[memoryview]:
        """Read the arrays of a value as bytes. Blocks for seconds at most. Raises ReadFailed."""
        starts, end = layout_parts(slot.parts)
        if slot.store.partition(" ")[0] != self._store.name.partition(" ")[0]:
            fix = "install the same extras of mstar on every host"
            raise ReadFailed(f"{sender} uses the store {slot.store!r}, this process {self._store.name!r}\n  fix: {fix}")
        size = end + sum(export.length for export in slot.exports)
        if end != slot.length or not 0 < size <= _MAX_VALUE_BYTES:
            raise read_failure(slot.length, sender, f"the parts of {list(slot.parts)} bytes do not match")
        self._store_by_peer[sender] = slot.store
        address, memory = self._buffers.acquire(align_up(end) + ENTRY_BYTES)
        buffers = [self._buffers.acquire(export.length) for export in slot.exports]
        try:
            self._store.read(slot, address, memory, buffers)
        except StaleSlot:
            raise read_failure(size, sender, "they were already read or freed") from None
        except PeerUnreachable as error:
            with self._lock:
                self._unfreed.setdefault(slot.store, []).append(slot)
            raise read_failure(size, sender, f"its store {slot.store!r} is unreachable ({error})") from error
        self._free_pending(slot.store)
        arrays = [memory[start : start + length] for start, length in zip(starts, slot.parts, strict=True)]
        for export, (_, buffer) in zip(slot.exports, buffers, strict=True):
            arrays.insert(export.number, buffer[: export.length])
        return arrays

    def forget(self, peer: Hashable) -> None:
        """Close the connections to a dead peer."""
        if (store := self._store_by_peer.pop(peer, None)) is not None:
            with self._lock:
                self._unfreed.pop(store, None)
            self._store.forget(store.partition(" ")[2])

    def buffers_in_use(self) -> int:
        """Number of received values still in use."""
        return self._buffers.in_use()

    def close(self) -> None:
        """Stop all threads and close all connections."""
        self._buffers.close()
        self._store.close()

    def _free_pending(self, store: str) -> None:
        """Free slots that could not be read, now that their store answers."""
        with self._lock:
            slots = self._unfreed.pop(store, [])
        for index, slot in enumerate(slots):
            try:
                self._store.free(slot)
            except PeerUnreachable:
                with self._lock:
                    self._unfreed.setdefault(store, []).extend(slots[index:])
                return


def _open_store(endpoint: HostEndpoint, arena: Arena) -> RemoteStore:
    if endpoint.store_kind != "tcp":
        try:
            return MooncakeStore(endpoint.ip, arena.memory)
        except ImportError:
            if endpoint.store_kind:
                raise
    return TcpStore(endpoint.ip, endpoint.key, arena.memory)
