"""Segments: shared memory of its own (a memfd) for one array that is too large for the arena, or for a full arena.

An array in a segment is not copied between processes of a host. The sender puts a `SegmentRef` into a small slot of its
arena and keeps the segment until the slot is read or its peer is forgotten. The reader opens the segment through the
descriptor of the sender, so that it lives as long as any process maps it. A process that forwards such an array sends
its own descriptor of the same memory.

Received arrays are read-only where they can be forwarded: a change would be in this process and not in the segment.
Elsewhere they are private copies on write. Segments of a pool are not forwarded, and shared with one reader:
`segment_pool`.
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
ID_BYTES = 8
"""Size of the id at the start of a segment."""
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
    is_pooled: bool = False
    """Whether the sender uses the segment again after its slot was marked as read (`segment_pool`)."""


class Segment(mmap.mmap):
    """Mapped memory of a segment. The descriptor is closed with the last reference to the mapping."""

    fd: int
    id: bytes
    address: int

    def __new__(cls, fd: int, *, access: int, is_forwardable: bool) -> Segment:
        """Map a segment; takes ownership of the descriptor."""
        try:
            segment = super().__new__(cls, fd, 0, access=access)
        except BaseException:
            os.close(fd)
            raise
        segment.fd = fd
        segment.id = segment[:ID_BYTES]
        segment.address = _address(segment)
        if is_forwardable:
            _forwardable.add(segment)
        return segment

    @classmethod
    def create(cls, size: int, *, is_forwardable: bool = True) -> Segment:
        """A new segment for `size` bytes of data."""
        fd = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, DATA_OFFSET_BYTES + size)
            os.pwrite(fd, secrets.token_bytes(ID_BYTES), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, access=mmap.ACCESS_WRITE, is_forwardable=is_forwardable)

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
        # A change in a private copy is not in the segment, so that it cannot be sent on.
        access = mmap.ACCESS_READ if is_read_only else mmap.ACCESS_COPY
        return cls._open(ref, sender, os.O_RDONLY, access=access, is_forwardable=is_read_only)

    @classmethod
    def open_shared(cls, ref: SegmentRef, sender: Hashable) -> Segment:
        """Map the segment of another process so that both see the changes of each other. Raises ReadFailed."""
        return cls._open(ref, sender, os.O_RDWR, access=mmap.ACCESS_WRITE, is_forwardable=False)

    @classmethod
    def _open(cls, ref: SegmentRef, sender: Hashable, mode: int, *, access: int, is_forwardable: bool) -> Segment:
        path = segment_path(ref)
        try:
            if os.readlink(path) != f"/memfd:{_MEMFD_NAME} (deleted)":
                raise FileNotFoundError("not a segment")
            segment = cls(os.open(path, mode | os.O_CLOEXEC), access=access, is_forwardable=is_forwardable)
        except (OSError, ValueError) as error:
            raise read_failure(ref.length, sender, f"a segment cannot be opened ({type(error).__name__})") from error
        if segment.id != ref.id or ref.offset + ref.length > len(segment):
            raise read_failure(ref.length, sender, "a segment was replaced")
        return segment

    def renew(self, new_id: bytes) -> None:
        """Replace the id, so that references to the bytes of before are rejected."""
        self.id = self[:ID_BYTES] = new_id

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


def segment_path(ref: SegmentRef) -> str:
    """Path of a segment that another process has open."""
    return f"/proc/{ref.pid}/fd/{ref.fd}"


def address_of(data: memoryview) -> int | None:
    """Address of the bytes of an array; None for other objects."""
    interface = getattr(data.obj, "__array_interface__", None)
    return None if interface is None else interface["data"][0]


def find_segment(data: memoryview) -> tuple[Segment, int] | None:
    """Segment that holds these bytes of an array, and their offset in it; None if they are not forwardable."""
    if (address := address_of(data)) is None:
        return None
    for segment in list(_forwardable):  # few: each is megabytes
        if segment.address <= address < segment.address + len(segment):
            return segment, address - segment.address
    return None


def _address(segment: mmap.mmap) -> int:
    import numpy as np  # a process with segments has arrays

    return np.frombuffer(segment, np.uint8).__array_interface__["data"][0]
