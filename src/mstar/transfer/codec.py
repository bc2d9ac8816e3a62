"""Arena codec: encodes values for a peer, small ones inline, large arrays through shared memory or a remote store.

It keeps slots until the peer has read them. It sends nothing: a packed value must be sent to that peer, which unpacks
it once, or the peer must be forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from mstar.errors import ReadFailed, WouldBlock
from mstar.transfer import values
from mstar.transfer.arena import DEFAULT_CAPACITY_BYTES, Arena, ArenaReader, Descriptor
from mstar.transfer.remote_arrays import HostEndpoint, RemoteArrays
from mstar.transfer.remote_store import RemoteSlot


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """An encoded value and its large arrays: one slot each on this host, one common slot for another host."""

    placed: list[Descriptor]
    value: msgspec.Raw
    remote_slot: RemoteSlot | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class ArenaCodec:
    """Encodes and decodes values per peer. A peer is one incarnation of a process.

    With `numpy_only` tensors are decoded as numpy arrays: a front end need not load torch. An `endpoint` with an IP
    address enables transfers between hosts.
    """

    def __init__(
        self, capacity: int = DEFAULT_CAPACITY_BYTES, *, numpy_only: bool = False, endpoint: HostEndpoint | None = None
    ) -> None:
        self._arena = Arena(capacity)
        self._reader = ArenaReader()
        self._numpy_only = numpy_only
        self._remote_arrays = RemoteArrays(endpoint, self._arena) if endpoint is not None and endpoint.ip else None

    def pack(self, value: Any, to: Hashable) -> bytes:
        """Encode a value for a peer. Raises NotSerializable."""
        if self._remote_arrays is not None and not self._remote_arrays.is_local(to):
            return self._pack_remote(self._remote_arrays, value, to)
        placed: list[Descriptor] = []

        def place(data: memoryview) -> int | None:
            if (descriptor := self._arena.put(data, to)) is None:
                return None
            placed.append(descriptor)
            return len(placed) - 1

        try:
            packed = values.pack(value, place)
        except BaseException:
            for descriptor in placed:
                self._arena.cancel(descriptor)
            raise
        return _encode((placed, msgspec.Raw(packed)))

    def _pack_remote(self, remote_arrays: RemoteArrays, value: Any, to: Hashable) -> bytes:
        parts: list[memoryview] = []

        def gather(data: memoryview) -> int:
            parts.append(data)
            return len(parts) - 1

        packed = values.pack(value, gather)
        if not parts:
            return _encode(((), msgspec.Raw(packed)))
        if (descriptor := self._arena.put_parts(parts, to)) is None:
            return _encode(((), msgspec.Raw(values.pack(value))))
        return _encode(((), msgspec.Raw(packed), remote_arrays.to_remote_slot(descriptor, tuple(map(len, parts)))))

    def unpack(self, data: bytes | memoryview, sender: Hashable, *, may_wait: bool = False) -> Any:
        """Decode a value from a peer. Raises ReadFailed.

        Raises WouldBlock, without side effects, if the arrays are on another host and `may_wait` is False. Any number
        of threads can wait at the same time.
        """
        try:
            packed = _decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fix = "run the same version of mstar and of the models in all processes"
            raise ReadFailed(f"cannot decode {len(data)} bytes from {sender}: {error}\n  fix: {fix}") from error
        if packed.remote_slot is None:
            placed = self._read_placed(packed.placed, sender)
        elif not may_wait:
            raise WouldBlock
        elif self._remote_arrays is None:
            fix = "configure the IP address of every host"
            raise ReadFailed(
                f"a value from {sender} is on another host, and this process has no endpoint\n  fix: {fix}"
            )
        else:
            placed = self._remote_arrays.fetch(packed.remote_slot, sender)
        return values.unpack(packed.value, placed, numpy_only=self._numpy_only)

    def _read_placed(self, descriptors: list[Descriptor], sender: Hashable) -> list[bytearray]:
        placed: list[bytearray] = []
        failed: ReadFailed | None = None
        for descriptor in descriptors:  # all of them, even after a failure: unread slots are not freed
            try:
                placed.append(self._reader.read(descriptor, sender))
            except ReadFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return placed

    def forget(self, peer: Hashable) -> None:
        """Free all slots of a dead peer, and close its arena."""
        self._arena.forget(peer)
        self._reader.forget(peer)
        if self._remote_arrays is not None:
            self._remote_arrays.forget(peer)

    def stats(self) -> dict[str, int]:
        """Number and bytes of unread slots."""
        return self._arena.stats()

    def close(self) -> None:
        """Close all memory and connections."""
        if self._remote_arrays is not None:
            self._remote_arrays.close()
        self._reader.close()
        self._arena.close()
