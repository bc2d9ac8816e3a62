"""Pool of segments for exports: memory that stays mapped, because faulting in new pages costs more than the copy.

    sender     SegmentPool      allocate -> filled by an export -> sent once -> read by its peer -> allocated again
    reader     SegmentMappings  maps a segment at its first use, and keeps the mapping for the next one

Each use has a random id of its own, which the reader compares. The reader marks the slot of a reference as read when
the last array on it is garbage-collected, and only then the sender uses the segment again. A segment whose peer was
forgotten is not used again: that peer may still read it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable

from mstar.transfer.arena import read_failure
from mstar.transfer.segments import DATA_OFFSET_BYTES, ID_BYTES, Segment, SegmentRef, segment_path

MAX_FREE_BYTES = 512 << 20
"""Maximum bytes of free segments that a process keeps for its next exports."""
_MIN_STEP_BYTES = 1 << 20
_NO_ID = bytes(ID_BYTES)
"""What the readers of a freed segment find in place of an id."""


class PooledExport:
    """One use of a segment. It ends when its bytes are unreferenced, here and in the slot that was sent."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.is_sent = False
        self._is_read = False

    def mark_read(self) -> None:
        """Record that the peer has released the bytes."""
        self._is_read = True

    @property
    def is_reusable(self) -> bool:
        """Whether no other process can read the segment."""
        return self._is_read or not self.is_sent

    def ref(self, length: int) -> SegmentRef:
        """Location of the bytes, for a reader on this host."""
        segment = self.segment
        return SegmentRef(os.getpid(), segment.fd, segment.id, DATA_OFFSET_BYTES, length, is_pooled=True)


class SegmentPool:
    """Segments to export to. `register` is called with address and size of each new one, `unregister` with its address.

    Thread-safe: the engine allocates, the actor loop sends.
    """

    def __init__(
        self, register: Callable[[int, int], None] | None = None, unregister: Callable[[int], None] | None = None
    ) -> None:
        self._register = register
        self._unregister = unregister
        self._lock = threading.Lock()
        self._free: list[Segment] = []
        self._in_use: dict[int, tuple[PooledExport, weakref.ref[ctypes.Array[ctypes.c_char]]]] = {}
        """Uses and their bytes, by address of the bytes."""
        self._ended: deque[PooledExport] = deque()
        """Filled by finalizers, which run in any thread at any time, also while the lock is held."""

    def allocate(self, size: int) -> memoryview:
        """Bytes to export to; their content is undefined."""
        with self._lock:
            self._collect()
            fitting = [segment for segment in self._free if len(segment) - DATA_OFFSET_BYTES >= size]
            if fitting:
                segment = min(fitting, key=len)
                self._free.remove(segment)
                segment.renew(secrets.token_bytes(ID_BYTES))
            else:
                step = max(_MIN_STEP_BYTES, 1 << max(size.bit_length() - 4, 0))  # exports of like sizes share segments
                segment = Segment.create(-(-size // step) * step, is_forwardable=False)
                if self._register is not None:
                    self._register(segment.address, len(segment))
            export = PooledExport(segment)
            data = (ctypes.c_char * size).from_buffer(segment, DATA_OFFSET_BYTES)
            self._in_use[ctypes.addressof(data)] = export, weakref.ref(data)
        weakref.finalize(data, self._ended.append, export).atexit = False
        return memoryview(data).cast("B")

    def take(self, address: int) -> tuple[PooledExport, object] | None:
        """The export at an address, to be sent to one peer, and what keeps its bytes.

        None if there is none or it was sent before: a peer may change what it receives.
        """
        if (known := self._in_use.get(address)) is None:  # without the lock: most arrays are no exports
            return None
        with self._lock:
            export, data = known[0], known[1]()
            if export.is_sent or data is None:
                return None
            export.is_sent = True
            return export, data

    def close(self) -> None:
        """Free what is not in use."""
        with self._lock:
            self._collect()
            while self._free:
                self._discard(self._free.pop())

    def _collect(self) -> None:
        """Take back the segments whose use has ended, and free the oldest beyond the limit."""
        while self._ended:
            export = self._ended.popleft()
            self._in_use.pop(export.segment.address + DATA_OFFSET_BYTES, None)
            if export.is_reusable:
                self._free.append(export.segment)
            elif self._unregister is not None:
                self._unregister(export.segment.address)
        while sum(map(len, self._free)) > MAX_FREE_BYTES:
            self._discard(self._free.pop(0))

    def _discard(self, segment: Segment) -> None:
        """Free a segment: its memory too, although its readers keep their mappings."""
        if self._unregister is not None:
            self._unregister(segment.address)
        segment.madvise(mmap.MADV_REMOVE)


class SegmentMappings:
    """Mappings of pooled segments of other processes. Arrays on them are writable; nothing else reads their bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, dict[int, Segment]] = {}
        """Mappings that no array uses, by sender and inode. A mapped file keeps its inode number."""
        self._released: deque[tuple[Hashable, int, Segment]] = deque()
        """Filled by finalizers, which run in any thread at any time, also while the lock is held."""

    def open(self, ref: SegmentRef, sender: Hashable, mark_read: Callable[[], None]) -> memoryview:
        """The bytes of a pooled segment; `mark_read` is called when they are unreferenced. Raises ReadFailed."""
        try:
            inode = os.stat(segment_path(ref)).st_ino
        except OSError as error:
            raise read_failure(ref.length, sender, f"a segment cannot be opened ({type(error).__name__})") from error
        with self._lock:
            self._collect()
            segment = self._idle.get(sender, {}).pop(inode, None)
        if segment is None:
            segment = Segment.open_shared(ref, sender)
        elif segment[:ID_BYTES] != ref.id or ref.offset + ref.length > len(segment):
            raise read_failure(ref.length, sender, "a segment was replaced")
        data = (ctypes.c_char * ref.length).from_buffer(segment, ref.offset)

        def release() -> None:
            self._released.append((sender, inode, segment))  # first: the next use can come at once
            mark_read()

        weakref.finalize(data, release).atexit = False
        return memoryview(data).cast("B")

    def forget(self, peer: Hashable) -> None:
        """Unmap the segments of a dead peer."""
        with self._lock:
            self._collect()
            self._idle.pop(peer, None)

    def close(self) -> None:
        """Unmap all segments that no array uses."""
        with self._lock:
            self._released.clear()
            self._idle.clear()

    def _collect(self) -> None:
        """Keep the mappings that were released, and unmap the segments that their senders have freed."""
        while self._released:
            sender, inode, segment = self._released.popleft()
            self._idle.setdefault(sender, {})[inode] = segment
        for idle in self._idle.values():
            for inode in [inode for inode, segment in idle.items() if segment[:ID_BYTES] == _NO_ID]:
                del idle[inode]
