"""Arena codec: encodes values for a peer, small ones inline, large arrays through shared memory or a remote store.

On one host, arrays of SEGMENT_BYTES or more, and those that a full arena has no room for, get a segment of their own.

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
from mstar.transfer.remote_store import RemoteExport, RemoteSlot
from mstar.transfer.segment_pool import PooledExport, SegmentMappings, SegmentPool
from mstar.transfer.segments import DATA_OFFSET_BYTES, Segment, SegmentRef, address_of, find_segment
from mstar.transfer.tokens import TOKEN_SIZES, pack_token, unpack_token


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """An encoded value and its large arrays: one slot each on this host, one common slot for another host."""

    placed: list[Descriptor]
    value: msgspec.Raw
    remote_slot: RemoteSlot | None = None
    in_segments: list[int] = []
    """Indices of the arrays whose slot holds a SegmentRef instead of the bytes."""


MIN_SEGMENT_BYTES = 1 << 20
"""Minimum size in bytes of an array that gets a segment when the arena is full. Smaller ones are sent inline."""
SEGMENT_BYTES = 8 << 20
"""Minimum size in bytes of an array that gets a segment although the arena has room. It is not copied again when it is
forwarded, and the arena stays free for the values of other requests."""

_encode = msgspec.msgpack.Encoder().encode
_NO_ARRAYS = _encode(([], msgspec.Raw(b"")))
"""Start of an encoded value without large arrays."""
_decode = msgspec.msgpack.Decoder(_Packed).decode
_decode_segment_ref = msgspec.msgpack.Decoder(SegmentRef).decode


_WITHOUT_ARRAYS = frozenset({type(None), bool, int, float, str, bytes})


class ArenaCodec:
    """Encodes and decodes values per peer. A peer is one incarnation of a process.

    With `numpy_only` tensors are decoded as numpy arrays: a front end need not load torch. With `forwards` very large
    arrays are read-only, and are sent on without a copy. An `endpoint` with an IP address enables transfers between
    hosts.
    """

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY_BYTES,
        *,
        numpy_only: bool = False,
        forwards: bool = False,
        endpoint: HostEndpoint | None = None,
    ) -> None:
        self._arena = Arena(capacity)
        self._reader = ArenaReader()
        self._numpy_only = numpy_only
        self._forwards = forwards
        self._remote_arrays = RemoteArrays(endpoint, self._arena) if endpoint is not None and endpoint.ip else None
        self._mappings = SegmentMappings()
        self.exports = SegmentPool() if self._remote_arrays is None else self._remote_arrays.exports
        """Memory for large arrays that are sent once: they are not copied again."""

    def pack(self, value: Any, to: Hashable) -> bytes:
        """Encode a value for a peer. Raises NotSerializable."""
        if (kind := type(value)) in _WITHOUT_ARRAYS:
            is_plain = kind is str and value.isascii()  # a token as text, the most frequent value
            return _NO_ARRAYS + (_encode(value) if is_plain else values.pack(value))
        if (token := pack_token(value)) is not None:
            return _NO_ARRAYS + token
        if self._remote_arrays is not None and not self._remote_arrays.is_local(to):
            return self._pack_remote(self._remote_arrays, value, to)
        placed: list[Descriptor] = []
        in_segments: list[int] = []

        def place(data: memoryview) -> int | None:
            if (descriptor := self._put_export(data, to)) is not None:
                in_segments.append(len(placed))
                placed.append(descriptor)
                return len(placed) - 1
            known = find_segment(data)
            descriptor = self._arena.put(data, to) if known is None and len(data) < SEGMENT_BYTES else None
            if descriptor is None:
                if len(data) < MIN_SEGMENT_BYTES or (descriptor := self._put_segment(data, known, to)) is None:
                    return None
                in_segments.append(len(placed))
            placed.append(descriptor)
            return len(placed) - 1

        try:
            packed = msgspec.Raw(values.pack(value, place))
        except BaseException:
            for descriptor in placed:
                self._arena.cancel(descriptor)
            raise
        return _encode((placed, packed, None, in_segments) if in_segments else (placed, packed))

    def _put_segment(self, data: memoryview, known: tuple[Segment, int] | None, to: Hashable) -> Descriptor | None:
        """Share bytes with a peer through the segment that holds them, or through a new one; None if that is full."""
        segment, offset = known or (Segment.copy_of(data), DATA_OFFSET_BYTES)
        ref = memoryview(_encode(segment.ref(offset, len(data))))
        return self._arena.put(ref, to, keep=segment)

    def _put_export(self, data: memoryview, to: Hashable) -> Descriptor | None:
        """Send the bytes of an export where they are; None if they are no export, or the arena is full."""
        if (address := address_of(data)) is None or (taken := self.exports.take(address)) is None:
            return None
        export, keep = taken
        return self._arena.put(memoryview(_encode(export.ref(len(data)))), to, keep=keep, on_read=export.mark_read)

    def _pack_remote(self, remote_arrays: RemoteArrays, value: Any, to: Hashable) -> bytes:
        parts: list[memoryview] = []
        exports: list[RemoteExport] = []
        taken: list[tuple[PooledExport, object]] = []

        def gather(data: memoryview) -> int:
            number = len(parts) + len(exports)
            address = address_of(data) if remote_arrays.serves_exports else None
            if address is not None and (export := self.exports.take(address)) is not None:
                exports.append(RemoteExport(number, address, len(data)))
                taken.append(export)
            else:
                parts.append(data)
            return number

        def mark_read() -> None:
            for export, _ in taken:
                export.mark_read()

        packed = values.pack(value, gather)
        if not parts and not exports:
            return _encode(((), msgspec.Raw(packed)))
        if (descriptor := self._arena.put_parts(parts, to, keep=taken or None, on_read=mark_read)) is None:
            return _encode(((), msgspec.Raw(values.pack(value))))
        slot = remote_arrays.to_remote_slot(descriptor, tuple(map(len, parts)), tuple(exports))
        return _encode(((), msgspec.Raw(packed), slot))

    def unpack(self, data: bytes | memoryview, sender: Hashable, *, may_wait: bool = False) -> Any:
        """Decode a value from a peer. Raises ReadFailed.

        Raises WouldBlock, without side effects, if the arrays are on another host and `may_wait` is False. Any number
        of threads can wait at the same time.
        """
        if bytes(data[: len(_NO_ARRAYS)]) == _NO_ARRAYS:  # to compare a memoryview takes longer
            value = data[len(_NO_ARRAYS) :]
            token = unpack_token(bytes(value), numpy_only=self._numpy_only) if len(value) in TOKEN_SIZES else None
            return values.unpack(value, numpy_only=self._numpy_only) if token is None else token
        try:
            packed = _decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fix = "run the same version of mstar and of the models in all processes"
            raise ReadFailed(f"cannot decode {len(data)} bytes from {sender}: {error}\n  fix: {fix}") from error
        if packed.remote_slot is None:
            placed = self._read_placed(packed.placed, packed.in_segments, sender)
        elif not may_wait:
            raise WouldBlock
        elif self._remote_arrays is None:
            fix = "configure the IP address of every host"
            raise ReadFailed(
                f"a value from {sender} is on another host, and this process has no endpoint\n  fix: {fix}"
            )
        else:
            placed = self._remote_arrays.fetch(packed.remote_slot, sender)
        return values.unpack(memoryview(packed.value), placed, numpy_only=self._numpy_only)

    def _read_placed(
        self, descriptors: list[Descriptor], in_segments: list[int], sender: Hashable
    ) -> list[bytearray | memoryview]:
        placed: list[bytearray | memoryview] = []
        failed: ReadFailed | None = None

        for index, descriptor in enumerate(descriptors):  # all, even after a failure: unread slots are not freed
            try:
                if index in in_segments:
                    placed.append(self._open_segment(descriptor, sender))
                else:
                    placed.append(self._reader.read(descriptor, sender))
            except ReadFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return placed

    def _open_segment(self, descriptor: Descriptor, sender: Hashable) -> memoryview:
        """The bytes that a slot refers to. The sender keeps them until the slot is marked as read."""
        data, mark_read = self._reader.peek(descriptor, sender)
        try:
            ref = _decode_segment_ref(data)
            if ref.is_pooled:
                content = self._mappings.open(ref, sender, mark_read)
                mark_read = None
                return content
            segment = Segment.open(ref, sender, is_read_only=self._forwards)
            return memoryview(segment)[ref.offset : ref.offset + ref.length]
        finally:
            if mark_read is not None:
                mark_read()

    def forget(self, peer: Hashable) -> None:
        """Free all slots of a dead peer, and close its arena."""
        self._arena.forget(peer)
        self._reader.forget(peer)
        self._mappings.forget(peer)
        if self._remote_arrays is not None:
            self._remote_arrays.forget(peer)

    def stats(self) -> dict[str, int]:
        """Number and bytes of unread slots."""
        return self._arena.stats()

    def close(self) -> None:
        """Close all memory and connections."""
        self.exports.close()
        self._mappings.close()
        if self._remote_arrays is not None:
            self._remote_arrays.close()
        self._reader.close()
        self._arena.close()
