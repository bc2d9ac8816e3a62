"""ArenaCodec: values for other processes, small ones as bytes and large arrays through shared memory, or a store for
those on other hosts.

It keeps what a peer has not read yet, and no more. It speaks to nobody: whoever has packed a value must send it to that
peer, which unpacks it once, or forget that peer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from mstar.transfer import values
from mstar.transfer.afar import Afar, Reach
from mstar.transfer.arena import CAPACITY, Arena, Descriptor, Reader
from mstar.transfer.errors import NotHere, ReadFailed
from mstar.transfer.stores import Far


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A value and where its large arrays are: on this host each by itself, on another one all together."""

    placed: list[Descriptor]
    value: msgspec.Raw
    far: Far | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class ArenaCodec:
    """Values as bytes for one peer, and back. A peer is one life of a process.

    If `is_plain`, tensors come back as arrays of numpy: who only hands them on to clients need not load torch. With a
    `reach` there are other hosts; one that has no address is none.
    """

    def __init__(self, capacity: int = CAPACITY, *, is_plain: bool = False, reach: Reach | None = None) -> None:
        self._arena = Arena(capacity)
        self._reader = Reader()
        self._is_plain = is_plain
        self._afar = Afar(reach, self._arena) if reach is not None and reach.ip else None

    def pack(self, value: Any, to: Hashable) -> bytes:
        """A value for a peer. Raises Unpackable."""
        if self._afar is not None and not self._afar.is_here(to):
            return self._pack_afar(self._afar, value, to)
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
                self._arena.take_back(descriptor)
            raise
        return _encode((placed, msgspec.Raw(packed)))

    def _pack_afar(self, afar: Afar, value: Any, to: Hashable) -> bytes:
        parts: list[memoryview] = []

        def gather(data: memoryview) -> int:
            parts.append(data)
            return len(parts) - 1

        packed = values.pack(value, gather)
        if not parts:
            return _encode(((), msgspec.Raw(packed)))
        if (descriptor := self._arena.put_together(parts, to)) is None:
            return _encode(((), msgspec.Raw(values.pack(value))))
        return _encode(((), msgspec.Raw(packed), afar.sign(descriptor, tuple(map(len, parts)))))

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
        if packed.far is None:
            placed = self._taken(packed.placed, sender)
        elif not may_wait:
            raise NotHere
        elif self._afar is None:
            fix = "give every process the address of its host"
            raise ReadFailed(f"a value of {sender} is on another host, and this process knows none\n  fix: {fix}")
        else:
            placed = self._afar.fetch(packed.far, sender)
        return values.unpack(packed.value, placed, is_plain=self._is_plain)

    def _taken(self, descriptors: list[Descriptor], sender: Hashable) -> list[bytearray]:
        placed: list[bytearray] = []
        failed: ReadFailed | None = None
        for descriptor in descriptors:  # all of them, whatever happens: what is not taken is not freed
            try:
                placed.append(self._reader.take(descriptor, sender))
            except ReadFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return placed

    def forget(self, peer: Hashable) -> None:
        """That life is over: free what was kept for it, and close what it had."""
        self._arena.forget(peer)
        self._reader.forget(peer)
        if self._afar is not None:
            self._afar.forget(peer)

    def stock(self) -> dict[str, int]:
        """How much is kept for peers that have not read it."""
        return self._arena.stock()

    def close(self) -> None:
        """Give all memory up."""
        if self._afar is not None:
            self._afar.close()
        self._reader.close()
        self._arena.close()
