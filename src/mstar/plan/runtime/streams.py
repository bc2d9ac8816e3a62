"""Streams in a running walk: their two ends, and the instructions that work on them.

A stream is bounded: a writer is held up while the slowest reader has `bound` items before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar.plan.runtime.frame import Frame
from mstar.plan.runtime.messages import IterationPath, StreamClosed, StreamConsumed, StreamItem
from mstar.plan.tables import Instruction, Reader, Writer

if TYPE_CHECKING:
    from mstar.plan.runtime.run import PartitionRun

UNBOUNDED_ITEMS = 1 << 62
"""As many items as there will ever be."""


class ReaderEnd:
    """Items that one reader has not let go of. `start` is the position of the first of them."""

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
        """The seat that fills the stream, and the stream's number there."""
        self.siblings: list[ReaderEnd] = []
        """Other readers that the same region reads."""
        self.items: list[Any] = []
        self.start = 0
        self.total = 0
        self.is_closed = False
        self.is_detached = False
        self.waiting: tuple[Any, int] | None = None
        """The frame and instruction to try again when enough items have come, or no more will."""
        self.notify_at = UNBOUNDED_ITEMS
        """From how many items on, in all, each one that comes is to be noticed."""

    def between(self, start: int, end: int) -> list[Any]:
        """The items at these positions."""
        return self.items[start - self.start : end - self.start]

    def drop(self, count: int) -> None:
        """Forget the first `count` items of the stream."""
        del self.items[: count - self.start]
        self.start = count


class WriterEnd:
    """How many items were put, how many more may be, and the puts that wait."""

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
        """How many items each reader is done with; what a reader has not said yet is 0."""
        self.is_closed = False

    def open(self, bound: int, local_readers: list[ReaderEnd], remote_readers: list[tuple[int, int]]) -> None:
        """Say who reads, and how far the slowest may fall behind."""
        self.bound, self.local_readers, self.remote_readers = bound, local_readers, remote_readers
        readers = (*(end.number for end in local_readers), *(number for _, number in remote_readers))
        self.consumed = {number: self.consumed.get(number, 0) for number in readers}
        self.limit = min(self.consumed.values()) + bound

    def release(self, reader: int, count: int) -> list[tuple[Any, int]]:
        """A reader is done with the first `count` items; the puts that may go on now."""
        self.consumed[reader] = max(count, self.consumed.get(reader, 0))
        self.limit = min(self.consumed.values()) + self.bound
        parked, self.blocked_puts = self.blocked_puts, []
        return parked

    @property
    def is_over(self) -> bool:
        """Whether nobody will speak of this stream any more."""
        return self.is_closed and self.limit >= UNBOUNDED_ITEMS


def open_writer(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Make the filling end of a stream."""
    table: Writer = instruction.detail
    path = frame.path()
    near = [run.reader(number, path) for seat, number in table.readers if seat == run.program.seat]
    far = [(seat, number) for seat, number in table.readers if seat != run.program.seat]
    writer = run.writer(table.stream, path)
    writer.open(table.min_bound if run.has_minimal_buffers else table.bound, near, far)
    frame.slots[instruction.outs[0]] = writer
    return True


def open_reader(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Make a reading end of a stream."""
    table: Reader = instruction.detail
    reader = run.reader(table.reader, frame.path())
    reader.source = (table.writer_seat, table.stream)
    reader.siblings = [run.reader(number, reader.path) for number in table.siblings]
    if reader.siblings:
        reader.notify_at = 0
    frame.slots[instruction.outs[0]] = reader
    return True


def put(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Append a value, unless the slowest reader is too far behind."""
    slots = frame.slots
    value, writer = slots[instruction.args[0]], slots[instruction.args[1]]
    if writer.count >= writer.limit:
        writer.blocked_puts.append((frame, instruction.index))
        return False
    writer.count += 1
    for reader in writer.local_readers:  # as in receive(), which is not called here: this is done for every token
        reader.items.append(value)
        reader.total += 1
        if reader.total >= reader.notify_at:
            notify_reader(run, reader)
    for seat, number in writer.remote_readers:
        run.outbox.append(StreamItem(seat, number, writer.path, value))
    return True


def receive(run: PartitionRun, reader: ReaderEnd, value: Any) -> None:
    """An item has come for a reader."""
    reader.items.append(value)
    reader.total += 1
    if reader.total >= reader.notify_at:
        notify_reader(run, reader)


def notify_reader(run: PartitionRun, reader: ReaderEnd) -> None:
    """Enough has come for somebody to do something."""
    if reader.is_detached:
        reader.items.clear()
    elif reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
        reader.notify_at = 0 if reader.siblings else UNBOUNDED_ITEMS
    elif any(other.waiting is not None for other in reader.siblings):
        grant_credit(run, reader)


def wait_for_items(run: PartitionRun, reader: ReaderEnd, item_count: int, retry: tuple[Frame, int]) -> None:
    """Not enough is there: try again when so many items have come.

    While a region waits for this stream it cannot read its others, however full they are. To hold their writers up
    could be to hold up what it waits for, so they may go on.
    """
    reader.waiting = retry
    if not reader.siblings:
        reader.notify_at = item_count
    for other in reader.siblings:
        grant_credit(run, other)


def grant_credit(run: PartitionRun, reader: ReaderEnd) -> None:
    """Let the writer go on as if everything that came were read."""
    if not reader.is_detached:
        send_credit(run, reader, reader.total)


def take_next(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Get the next item, or the default once there will be none."""
    slots = frame.slots
    reader: ReaderEnd = slots[instruction.args[1]]
    if reader.items:
        item = reader.items[0]
        release(run, reader, reader.start + 1)
    elif reader.is_closed:
        item = slots[instruction.args[0]]
    else:
        wait_for_items(run, reader, reader.start + 1, (frame, instruction.index))
        return False
    slots[instruction.outs[0]] = item
    return True


def release(run: PartitionRun, reader: ReaderEnd, count: int) -> None:
    """The first `count` items will not be read again: let the writer go on."""
    reader.drop(count)
    send_credit(run, reader, count)


def send_credit(run: PartitionRun, reader: ReaderEnd, count: int) -> None:
    """Let the writer go on until it is its bound ahead of the first `count` items."""
    seat, stream = reader.source
    if seat == run.program.seat:
        on_consumed(run, run.writer(stream, reader.path), reader.number, count)
    else:
        run.outbox.append(StreamConsumed(seat, stream, reader.path, reader.number, count))


def on_consumed(run: PartitionRun, writer: WriterEnd, reader: int, count: int) -> None:
    """A reader has said how far it is, perhaps before the stream was opened here."""
    run.todo.extend(writer.release(reader, count))
    if writer.is_over:
        del run.writers[writer.number, writer.path]


def close_writer(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """All that fills a stream has ended."""
    writer: WriterEnd = frame.slots[instruction.args[0]]
    for reader in writer.local_readers:
        close(run, reader)
    for seat, number in writer.remote_readers:
        run.outbox.append(StreamClosed(seat, number, writer.path))
    writer.is_closed = True
    if writer.is_over:
        del run.writers[writer.number, writer.path]
    return True


def close(run: PartitionRun, reader: ReaderEnd) -> None:
    """Nothing more will come for a reader."""
    reader.is_closed = True
    if reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
    remove_reader(run, reader)


def detach(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """All that gets from a stream has ended."""
    detach_reader(run, frame.slots[instruction.args[0]])
    return True


def detach_reader(run: PartitionRun, reader: ReaderEnd) -> None:
    """Nobody will read any more: what still comes is dropped, and never holds the writer up."""
    reader.is_detached, reader.notify_at = True, 0
    release(run, reader, UNBOUNDED_ITEMS)
    remove_reader(run, reader)


def remove_reader(run: PartitionRun, reader: ReaderEnd) -> None:
    """Drop a reading end that nobody will speak of any more."""
    if reader.is_closed and reader.is_detached:
        run.readers.pop((reader.number, reader.path), None)
