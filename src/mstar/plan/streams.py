"""Streams in a running walk: their two ends, and the instructions that work on them.

A stream is bounded: a writer is held up while the slowest reader has `bound` items before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar.plan.frame import Frame
from mstar.plan.tables import Instruction, Reader, Writer
from mstar.plan.wires import Closed, ItemSent, Path, Released

if TYPE_CHECKING:
    from mstar.plan.run import Run

ENDLESS = 1 << 62
"""As many items as there will ever be."""


class ReaderEnd:
    """Items that one reader has not let go of. `start` is the position of the first of them."""

    __slots__ = (
        "beside",
        "is_closed",
        "is_let_go",
        "items",
        "number",
        "path",
        "source",
        "start",
        "total",
        "waiting",
        "wanted",
    )

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.source: tuple[int, int] = (0, 0)
        """The seat that fills the stream, and the stream's number there."""
        self.beside: list[ReaderEnd] = []
        """Other readers that the same region reads."""
        self.items: list[Any] = []
        self.start = 0
        self.total = 0
        self.is_closed = False
        self.is_let_go = False
        self.waiting: tuple[Any, int] | None = None
        """The frame and instruction to try again when enough items have come, or no more will."""
        self.wanted = ENDLESS
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

    __slots__ = ("bound", "count", "far", "is_closed", "limit", "near", "number", "parked", "path", "released")

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.bound = 0
        self.near: list[ReaderEnd] = []
        self.far: list[tuple[int, int]] = []
        self.count = 0
        self.limit = 0
        self.parked: list[tuple[Any, int]] = []
        self.released: dict[int, int] = {}
        """How many items each reader is done with; what a reader has not said yet is 0."""
        self.is_closed = False

    def open(self, bound: int, near: list[ReaderEnd], far: list[tuple[int, int]]) -> None:
        """Say who reads, and how far the slowest may fall behind."""
        self.bound, self.near, self.far = bound, near, far
        readers = (*(end.number for end in near), *(number for _, number in far))
        self.released = {number: self.released.get(number, 0) for number in readers}
        self.limit = min(self.released.values()) + bound

    def release(self, reader: int, count: int) -> list[tuple[Any, int]]:
        """A reader is done with the first `count` items; the puts that may go on now."""
        self.released[reader] = max(count, self.released.get(reader, 0))
        self.limit = min(self.released.values()) + self.bound
        parked, self.parked = self.parked, []
        return parked

    @property
    def is_over(self) -> bool:
        """Whether nobody will speak of this stream any more."""
        return self.is_closed and self.limit >= ENDLESS


def open_writer(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Make the filling end of a stream."""
    table: Writer = instruction.detail
    path = frame.path()
    near = [run.reader(number, path) for seat, number in table.readers if seat == run.part.seat]
    far = [(seat, number) for seat, number in table.readers if seat != run.part.seat]
    writer = run.writer(table.stream, path)
    writer.open(table.least if run.is_tight else table.bound, near, far)
    frame.slots[instruction.outs[0]] = writer
    return True


def open_reader(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Make a reading end of a stream."""
    table: Reader = instruction.detail
    reader = run.reader(table.reader, frame.path())
    reader.source = (table.writer_seat, table.stream)
    reader.beside = [run.reader(number, reader.path) for number in table.beside]
    if reader.beside:
        reader.wanted = 0
    frame.slots[instruction.outs[0]] = reader
    return True


def put(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Append a value, unless the slowest reader is too far behind."""
    slots = frame.slots
    value, writer = slots[instruction.args[0]], slots[instruction.args[1]]
    if writer.count >= writer.limit:
        writer.parked.append((frame, instruction.index))
        return False
    writer.count += 1
    for reader in writer.near:  # as in receive(), which is not called here: this is done for every token
        reader.items.append(value)
        reader.total += 1
        if reader.total >= reader.wanted:
            notice(run, reader)
    for seat, number in writer.far:
        run.outbox.append(ItemSent(seat, number, writer.path, value))
    return True


def receive(run: Run, reader: ReaderEnd, value: Any) -> None:
    """An item has come for a reader."""
    reader.items.append(value)
    reader.total += 1
    if reader.total >= reader.wanted:
        notice(run, reader)


def notice(run: Run, reader: ReaderEnd) -> None:
    """Enough has come for somebody to do something."""
    if reader.is_let_go:
        reader.items.clear()
    elif reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
        reader.wanted = 0 if reader.beside else ENDLESS
    elif any(other.waiting is not None for other in reader.beside):
        allow(run, reader)


def wait(run: Run, reader: ReaderEnd, wanted: int, again: tuple[Frame, int]) -> None:
    """Not enough is there: try again when so many items have come.

    While a region waits for this stream it cannot read its others, however full they are. To hold their writers up
    could be to hold up what it waits for, so they may go on.
    """
    reader.waiting = again
    if not reader.beside:
        reader.wanted = wanted
    for other in reader.beside:
        allow(run, other)


def allow(run: Run, reader: ReaderEnd) -> None:
    """Let the writer go on as if everything that came were read."""
    if not reader.is_let_go:
        tell_writer(run, reader, reader.total)


def take_next(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Get the next item, or the default once there will be none."""
    slots = frame.slots
    reader: ReaderEnd = slots[instruction.args[1]]
    if reader.items:
        item = reader.items[0]
        release(run, reader, reader.start + 1)
    elif reader.is_closed:
        item = slots[instruction.args[0]]
    else:
        wait(run, reader, reader.start + 1, (frame, instruction.index))
        return False
    slots[instruction.outs[0]] = item
    return True


def release(run: Run, reader: ReaderEnd, count: int) -> None:
    """The first `count` items will not be read again: let the writer go on."""
    reader.drop(count)
    tell_writer(run, reader, count)


def tell_writer(run: Run, reader: ReaderEnd, count: int) -> None:
    """Let the writer go on until it is its bound ahead of the first `count` items."""
    seat, stream = reader.source
    if seat == run.part.seat:
        released(run, run.writer(stream, reader.path), reader.number, count)
    else:
        run.outbox.append(Released(seat, stream, reader.path, reader.number, count))


def released(run: Run, writer: WriterEnd, reader: int, count: int) -> None:
    """A reader has said how far it is, perhaps before the stream was opened here."""
    run.todo.extend(writer.release(reader, count))
    if writer.is_over:
        del run.writers[writer.number, writer.path]


def close_writer(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """All that fills a stream has ended."""
    writer: WriterEnd = frame.slots[instruction.args[0]]
    for reader in writer.near:
        close(run, reader)
    for seat, number in writer.far:
        run.outbox.append(Closed(seat, number, writer.path))
    writer.is_closed = True
    if writer.is_over:
        del run.writers[writer.number, writer.path]
    return True


def close(run: Run, reader: ReaderEnd) -> None:
    """Nothing more will come for a reader."""
    reader.is_closed = True
    if reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
    forget(run, reader)


def let_go(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """All that gets from a stream has ended."""
    let_reader_go(run, frame.slots[instruction.args[0]])
    return True


def let_reader_go(run: Run, reader: ReaderEnd) -> None:
    """Nobody will read any more: what still comes is dropped, and never holds the writer up."""
    reader.is_let_go, reader.wanted = True, 0
    release(run, reader, ENDLESS)
    forget(run, reader)


def forget(run: Run, reader: ReaderEnd) -> None:
    """Drop a reading end that nobody will speak of any more."""
    if reader.is_closed and reader.is_let_go:
        run.readers.pop((reader.number, reader.path), None)
