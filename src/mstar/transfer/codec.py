"""ArenaCodec: values for other processes of this host, small ones as bytes and large arrays through shared memory.

It keeps what a peer has not read yet, and no more. It speaks to nobody: whoever has packed a value must send it to that
peer, which unpacks it once, or forget that peer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from mstar.transfer import values
from mstar.transfer.arena import CAPACITY, Arena, Descriptor, Reader
from mstar.transfer.errors import ReadFailed

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[Descriptor], msgspec.Raw]).decode


class ArenaCodec:
    """Values as bytes for one peer, and back. A peer is one life of a process.

    If `is_plain`, tensors come back as arrays of numpy: who only hands them on to clients need not load torch.
    """

    def __init__(self, capacity: int = CAPACITY, *, is_plain: bool = False) -> None:
        self._arena = Arena(capacity)
        self._reader = Reader()
        self._is_plain = is_plain

    def pack(self, value: Any, to: Hashable) -> bytes:
        """A value for a peer. Raises Unpackable."""
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

    def unpack(self, data: bytes | memoryview, sender: Hashable) -> Any:
        """The value that a peer has packed for this process. Raises ReadFailed."""
        try:
            descriptors, packed = _decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fix = "send it again; if that does not help, the two processes run different code"
            raise ReadFailed(f"{len(data)} bytes of {sender} hold no value: {error}\n  fix: {fix}") from error
        placed: list[bytearray] = []
        failed: ReadFailed | None = None
        for descriptor in descriptors:  # all of them, whatever happens: what is not taken is not freed
            try:
                placed.append(self._reader.take(descriptor, sender))
            except ReadFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return values.unpack(packed, placed, is_plain=self._is_plain)

    def forget(self, peer: Hashable) -> None:
        """That life is over: free what was kept for it, and close what it had."""
        self._arena.forget(peer)
        self._reader.forget(peer)

    def stock(self) -> dict[str, int]:
        """How much is kept for peers that have not read it."""
        return self._arena.stock()

    def close(self) -> None:
        """Give all memory up."""
        self._reader.close()
        self._arena.close()
