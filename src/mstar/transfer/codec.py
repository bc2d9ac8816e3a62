"""ArenaCodec: values for other processes, small ones as bytes and large arrays through shared memory, or a store for
those on other hosts.

It keeps what a peer has not read yet, and no more. It speaks to nobody: whoever has packed a value must send it to that
peer, which unpacks it once, or forget that peer.
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
    """A value and where its large arrays are: on this host each by itself, on another one all together."""

    placed: list[Descriptor]
    value: msgspec.Raw
    remote_slot: RemoteSlot | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class ArenaCodec:
    """Values as bytes for one peer, and back. A peer is one life of a process.

    If `is_plain`, tensors come back as arrays of numpy: who only hands them on to clients need not load torch. With a
    `reach` there are other hosts; one that has no address is none.
    """

    def __init__(
        self, capacity: int = DEFAULT_CAPACITY_BYTES, *, numpy_only: bool = False, endpoint: HostEndpoint | None = None
    ) -> None:
        self._arena = Arena(capacity)
        self._reader = ArenaReader()
        self._numpy_only = numpy_only
        self._remote_arrays = RemoteArrays(endpoint, self._arena) if endpoint is not None and endpoint.ip else None

    def pack(self, value: Any, to: Hashable) -> bytes:
        """A value for a peer. Raises Unpackable."""
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
        """The value that a peer has packed for this process. Raises ReadFailed.

        Raises NotHere, and has done nothing, if it is on another host and this thread may not wait for it. Any number
        of threads may wait at the same time.
        """
        try:
            packed = _decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fix = "send it again; if that does not help, the two processes run different code"
            raise ReadFailed(f"{len(data)} bytes of {sender} hold no value: {error}\n  fix: {fix}") from error
        if packed.remote_slot is None:
            placed = self._read_placed(packed.placed, sender)
        elif not may_wait:
            raise WouldBlock
        elif self._remote_arrays is None:
            fix = "give every process the address of its host"
            raise ReadFailed(f"a value of {sender} is on another host, and this process knows none\n  fix: {fix}")
        else:
            placed = self._remote_arrays.fetch(packed.remote_slot, sender)
        return values.unpack(packed.value, placed, numpy_only=self._numpy_only)

    def _read_placed(self, descriptors: list[Descriptor], sender: Hashable) -> list[bytearray]:
        placed: list[bytearray] = []
        failed: ReadFailed | None = None
        for descriptor in descriptors:  # all of them, whatever happens: what is not taken is not freed
            try:
                placed.append(self._reader.read(descriptor, sender))
            except ReadFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return placed

    def forget(self, peer: Hashable) -> None:
        """That life is over: free what was kept for it, and close what it had."""
        self._arena.forget(peer)
        self._reader.forget(peer)
        if self._remote_arrays is not None:
            self._remote_arrays.forget(peer)

    def stats(self) -> dict[str, int]:
        """How much is kept for peers that have not read it."""
        return self._arena.stats()

    def close(self) -> None:
        """Give all memory up."""
        if self._remote_arrays is not None:
            self._remote_arrays.close()
        self._reader.close()
        self._arena.close()
