"""Segments: shared memory of its own (a memfd) for one array that is too large for the arena, or for a full arena.

An array in a segment is not copied between processes of a host. The sender puts a `SegmentRef` into a small slot of its
arena and keeps the segment until the slot is read or its peer is forgotten. The reader opens the segment through the
descriptor of the sender, so that it lives as long as any process maps it. A process that forwards such an array sends
its own descriptor of the same memory.

Received arrays are read-only where they can be forwarded: a change would be in this process and not in the segment.
Elsewhere they are private copies on write.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import weakref
from collections.abc import Hashable

import msgspec

from mstar.transfer.arena import read_failure

_MEMFD_NAME = "mstar-segment"
_ID_BYTES = 8
DATA_OFFSET_BYTES = 64
"""Offset of the data: the id comes before."""


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """Location of some bytes in a segment."""

    pid: int
    fd: int
    id: bytes
    """Random id of the segment: process ids and descriptors are reused."""
    offset: int
    length: int


class Segment(mmap.mmap):
    """Mapped memory of a segment. The descriptor is closed with the last reference to the mapping."""

    fd: int
    id: bytes
    address: int

    def __new__(cls, fd: int, *, access: int) -> Segment:
        """Map a segment; takes ownership of the descriptor."""
        try:
            segment = super().__new__(cls, fd, 0, access=access)
        except BaseException:
            os.close(fd)
            raise
        segment.fd = fd
        segment.id = segment[:_ID_BYTES]
        segment.address = _address(segment)
        if access != mmap.ACCESS_COPY:  # otherwise a change in this process is not in the segment
            _forwardable.add(segment)
        return segment

    @classmethod
    def create(cls, size: int) -> Segment:
        """A new segment for `size` bytes of data."""
        fd = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, DATA_OFFSET_BYTES + size)
            os.pwrite(fd, secrets.token_bytes(_ID_BYTES), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, access=mmap.ACCESS_WRITE)

    @classmethod
    def copy_of(cls, data: memoryview) -> Segment:
        """A new segment with a copy of these bytes. Other threads run meanwhile."""
        segment = cls.create(len(data))
        written = 0
        while written < len(data):
            written += os.pwrite(segment.fd, data[written:], DATA_OFFSET_BYTES + written)
        return segment

    @classmethod
    def open(cls, ref: SegmentRef, sender: Hashable, *, is_read_only: bool) -> Segment:
        """Map the segment of another process. Raises ReadFailed."""
        path = f"/proc/{ref.pid}/fd/{ref.fd}"
        try:
            if os.readlink(path) != f"/memfd:{_MEMFD_NAME} (deleted)":
                raise FileNotFoundError("not a segment")
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            segment = cls(fd, access=mmap.ACCESS_READ if is_read_only else mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise read_failure(ref.length, sender, f"a segment cannot be opened ({type(error).__name__})") from error
        if segment.id != ref.id or ref.offset + ref.length > len(segment):
            raise read_failure(ref.length, sender, "a segment was replaced")
        return segment

    @property
    def data(self) -> memoryview:
        """The bytes after the header."""
        return memoryview(self)[DATA_OFFSET_BYTES:]

    def ref(self, offset: int, length: int) -> SegmentRef:
        """Location of some bytes, for a reader on this host."""
        return SegmentRef(os.getpid(), self.fd, self.id, offset, length)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.fd)


_forwardable: weakref.WeakSet[Segment] = weakref.WeakSet()
"""Segments of which this process has the bytes themselves."""


def find_segment(data: memoryview) -> tuple[Segment, int] | None:
    """Segment that holds these bytes of an array, and their offset in it; None if they are not forwardable."""
    interface = getattr(data.obj, "__array_interface__", None)
    if interface is None:
        return None
    address = interface["data"][0]
    for segment in list(_forwardable):  # few: each is megabytes
        if segment.address <= address < segment.address + len(segment):
            return segment, address - segment.address
    return None


def _address(segment: mmap.mmap) -> int:
    import numpy as np  # a process with segments has arrays

    return np.frombuffer(segment, np.uint8).__array_interface__["data"][0]
