"""The two ends of a stream: buffered items and flow control (credits). No knowledge of runs or instructions."""

from __future__ import annotations

from typing import Any

from mstar.plan.runtime.messages import IterationPath

UNBOUNDED_ITEMS = 1 << 62
"""Item count that no stream reaches."""


class ReaderEnd:
    """Items that one reader has not released. `start` is the stream position of the first of them."""

    __slots__ = (
        "is_closed",
        "is_detached",
        "items",
        "notify_at",
        "number",
        "path",
        "siblings",
        "source",
        "start",
        "total",
        "waiting",
    )

    def __init__(self, number: int, path: IterationPath) -> None:
        self.number = number
        self.path = path
        self.source: tuple[int, int] = (0, 0)
        """Seat of the writer, and the stream's number there."""
        self.siblings: list[ReaderEnd] = []
        """Readers of other streams in the same region."""
        self.items: list[Any] = []
        self.start = 0
        self.total = 0
        self.is_closed = False
        self.is_detached = False
        self.waiting: tuple[Any, int] | None = None
        """Frame and instruction to retry when enough items have arrived or the stream closes."""
        self.notify_at = UNBOUNDED_ITEMS
        """Total item count from which every further item triggers a notification."""

    def between(self, start: int, end: int) -> list[Any]:
        """Items at stream positions `start` to `end`."""
        return self.items[start - self.start : end - self.start]

    def drop(self, count: int) -> None:
        """Drop the first `count` items of the stream."""
        del self.items[: count - self.start]
        self.start = count


class WriterEnd:
    """Items written, the flow-control limit, and puts that are blocked by it."""

    __slots__ = (
        "blocked_puts",
        "bound",
        "consumed",
        "count",
        "is_closed",
        "limit",
        "local_readers",
        "number",
        "path",
        "remote_readers",
    )

    def __init__(self, number: int, path: IterationPath) -> None:
        self.number = number
        self.path = path
        self.bound = 0
        self.local_readers: list[ReaderEnd] = []
        self.remote_readers: list[tuple[int, int]] = []
        self.count = 0
        self.limit = 0
        self.blocked_puts: list[tuple[Any, int]] = []
        self.consumed: dict[int, int] = {}
        """Items released by each reader; 0 until its first credit arrives."""
        self.is_closed = False

    def open(self, bound: int, local_readers: list[ReaderEnd], remote_readers: list[tuple[int, int]]) -> None:
        """Set the readers, and the maximum number of items that the slowest of them can lag."""
        self.bound, self.local_readers, self.remote_readers = bound, local_readers, remote_readers
        readers = (*(end.number for end in local_readers), *(number for _, number in remote_readers))
        self.consumed = {number: self.consumed.get(number, 0) for number in readers}
        self.limit = min(self.consumed.values()) + bound

    def release(self, reader: int, count: int) -> list[tuple[Any, int]]:
        """Record that a reader has released `count` items; returns the blocked puts to retry."""
        self.consumed[reader] = max(count, self.consumed.get(reader, 0))
        self.limit = min(self.consumed.values()) + self.bound
        blocked, self.blocked_puts = self.blocked_puts, []
        return blocked

    @property
    def is_over(self) -> bool:
        """Whether no further message can refer to this stream."""
        return self.is_closed and self.limit >= UNBOUNDED_ITEMS
