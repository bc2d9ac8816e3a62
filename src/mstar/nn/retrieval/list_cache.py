"""LRU cache of inverted lists under a memory budget, filled on demand and, between searches, by a prefetch thread.

Every list has its place in one file. A list is read with `pread` into memory of its own and then dropped from the page
cache, so that the budget is all the memory that lists have, and what is not resident is read from the disk.

Prefetching (lookahead) uses idle time only: the thread reads one list at a time, and none while a search runs. It
evicts no list that the same prefetch or the last search uses. What it read in vain is counted.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mstar.errors import LoadError


class ListCache:
    """Inverted lists: list n is rows `bounds[n]` to `bounds[n + 1]`, at byte `offsets[n]` of the file."""

    def __init__(self, file: Path, offsets: np.ndarray, bounds: np.ndarray, dims: int, budget_bytes: int) -> None:
        self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._offsets, self._dims = offsets, dims
        self._rows = np.diff(bounds)
        largest = int(self._rows.max(initial=0)) * dims * 4
        if budget_bytes < largest:
            os.close(self._file)
            problem = f"the memory budget of the index is {budget_bytes} bytes, its largest list has {largest}"
            raise LoadError(f"{problem}\n  fix: set the budget to {largest} bytes or more")
        self.budget_bytes = budget_bytes
        self.counters = dict.fromkeys(("hits", "misses", "evictions", "prefetched", "prefetched_used", "wasted"), 0)
        self.resident_bytes = 0
        self.peak_bytes = 0
        self._lists: OrderedDict[int, np.ndarray] = OrderedDict()
        self._unused = set[int]()
        """Prefetched lists that no search has used."""
        self._queue: deque[int] = deque()
        self._protected = frozenset[int]()
        """Lists that a prefetch does not evict."""
        self._waiting_searches = 0
        self._is_searching = False
        self._is_reading = False
        """Whether the prefetch thread reads a list now."""
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def search(self, numbers: Sequence[int]) -> Iterator[Iterator[tuple[int, np.ndarray]]]:
        """Iterate over lists, those in memory first. Prefetching and other searches wait until the context exits."""
        with self._changed:
            self._waiting_searches += 1
            # The thread reads at most one more list, which is often one of ours.
            self._changed.wait_for(lambda: not (self._is_reading or self._is_searching))
            self._waiting_searches -= 1
            self._is_searching = True
            self._protected = frozenset(numbers)
            ordered = sorted(numbers, key=lambda number: number not in self._lists)
        try:
            yield ((number, self._get(number)) for number in ordered)
        finally:
            with self._changed:
                self._is_searching = False
                self._changed.notify_all()

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Read lists in idle time, the most important first, as many as fit the budget. Replaces earlier requests."""
        with self._changed:
            left, kept = self.budget_bytes, list[int]()
            for number in numbers:
                left -= self._size(number)
                if left < 0:
                    break
                kept.append(number)
            self._protected |= frozenset(kept)
            self._queue = deque(number for number in kept if number not in self._lists)
            if self._thread is None and self._queue:
                self._thread = threading.Thread(target=self._prefetch_queued, name="index-prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the prefetch thread has nothing to do. False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queue or self._is_reading), timeout_s)

    def clear(self) -> None:
        """Evict everything."""
        with self._changed:
            self._queue.clear()
            self._changed.wait_for(lambda: not self._is_reading)
            while self._lists:
                self._evict(next(iter(self._lists)))

    def close(self) -> None:
        """End the thread and close the file."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        os.close(self._file)

    def _get(self, number: int) -> np.ndarray:
        """A list, read if it is not in memory. Called during a search only."""
        with self._changed:
            vectors = self._lists.get(number)
            if vectors is not None:
                self._lists.move_to_end(number)
                self.counters["hits"] += 1
                if number in self._unused:
                    self._unused.discard(number)
                    self.counters["prefetched_used"] += 1
                return vectors
            self.counters["misses"] += 1
            while self.resident_bytes + self._size(number) > self.budget_bytes:
                self._evict(next(iter(self._lists)))
        vectors = self._read(number)
        with self._changed:
            self._insert(number, vectors)
        return vectors

    def _prefetch_queued(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._can_prefetch)
                if self._is_closed:
                    return
                number = self._queue.popleft()
                if number in self._lists or not self._make_room(number):
                    self._changed.notify_all()
                    continue
                self._is_reading = True
            vectors = self._read(number)
            with self._changed:
                self._insert(number, vectors)
                self._unused.add(number)
                self.counters["prefetched"] += 1
                self._is_reading = False
                self._changed.notify_all()

    def _can_prefetch(self) -> bool:
        return self._is_closed or bool(self._queue and not (self._is_searching or self._waiting_searches))

    def _make_room(self, number: int) -> bool:
        """Evict lists that are not protected. False if that is not enough: then nothing is evicted."""
        needed = self.resident_bytes + self._size(number) - self.budget_bytes
        victims = list[int]()
        for victim in self._lists:
            if needed <= 0:
                break
            if victim not in self._protected:
                victims.append(victim)
                needed -= self._size(victim)
        if needed > 0:
            return False
        for victim in victims:
            self._evict(victim)
        return True

    def _insert(self, number: int, vectors: np.ndarray) -> None:
        self._lists[number] = vectors
        self.resident_bytes += vectors.nbytes
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def _evict(self, number: int) -> None:
        self.resident_bytes -= self._lists.pop(number).nbytes
        self.counters["evictions"] += 1
        if number in self._unused:
            self._unused.discard(number)
            self.counters["wasted"] += 1

    def _size(self, number: int) -> int:
        return int(self._rows[number]) * self._dims * 4

    def _read(self, number: int) -> np.ndarray:
        vectors = np.empty((int(self._rows[number]), self._dims), np.float32)
        data, offset = vectors.data.cast("B") if vectors.size else memoryview(b""), int(self._offsets[number])
        done = 0
        while done < len(data):
            count = os.preadv(self._file, [data[done:]], offset + done)
            if not count:
                raise LoadError(f"list {number} of the index ends early\n  fix: build the index again")
            done += count
        os.posix_fadvise(self._file, offset, len(data), os.POSIX_FADV_DONTNEED)
        return vectors
