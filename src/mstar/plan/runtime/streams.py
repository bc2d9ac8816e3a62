"""Stream instructions of a running walk: bounded channels with credit-based backpressure.

A writer blocks while its slowest reader lags by `bound` items. Each reader returns credits as it releases items: by a
direct call within one partition, by a STREAM_CONSUMED message between partitions.
"""

from __future__ import annotations

from typing import Any

from mstar.plan.runtime.frame import Frame, Run
from mstar.plan.runtime.messages import stream_closed, stream_consumed, stream_item
from mstar.plan.runtime.stream_ends import UNBOUNDED_ITEMS, ReaderEnd, WriterEnd
from mstar.plan.tables import Instruction, Reader, Writer


def open_writer(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Create the writing end of a stream."""
    table: Writer = instruction.detail
    path = frame.path()
    local_readers = [run.reader(number, path) for seat, number in table.readers if seat == run.program.seat]
    remote_readers = [(seat, number) for seat, number in table.readers if seat != run.program.seat]
    writer = run.writer(table.stream, path)
    writer.open(table.min_bound if run.has_minimal_buffers else table.bound, local_readers, remote_readers)
    frame.slots[instruction.outs[0]] = writer
    return True


def open_reader(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Create a reading end of a stream."""
    table: Reader = instruction.detail
    reader = run.reader(table.reader, frame.path())
    reader.source = (table.writer_seat, table.stream)
    reader.siblings = [run.reader(number, reader.path) for number in table.siblings]
    if reader.siblings:
        reader.notify_at = 0
    frame.slots[instruction.outs[0]] = reader
    return True


def put(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Append a value, or block while the slowest reader lags too far."""
    slots = frame.slots
    value, writer = slots[instruction.args[0]], slots[instruction.args[1]]
    if writer.count >= writer.limit:
        writer.blocked_puts.append((frame, instruction.index))
        return False
    writer.count += 1
    for reader in writer.local_readers:  # receive() inlined: this runs for every token
        reader.items.append(value)
        reader.total += 1
        if reader.total >= reader.notify_at:
            notify_reader(run, reader)
    for seat, number in writer.remote_readers:
        run.outbox.append(stream_item(seat, number, writer.path, value))
    return True


def receive(run: Run, reader: ReaderEnd, value: Any) -> None:
    """Append an item that arrived from another partition."""
    reader.items.append(value)
    reader.total += 1
    if reader.total >= reader.notify_at:
        notify_reader(run, reader)


def notify_reader(run: Run, reader: ReaderEnd) -> None:
    """Retry the instruction that waits for this reader, or grant credit while a sibling waits."""
    if reader.is_detached:
        reader.items.clear()
    elif reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
        reader.notify_at = 0 if reader.siblings else UNBOUNDED_ITEMS
    elif any(sibling.waiting is not None for sibling in reader.siblings):
        grant_credit(run, reader)


def wait_for_items(run: Run, reader: ReaderEnd, item_count: int, retry: tuple[Frame, int]) -> None:
    """Block until `item_count` items have arrived in total.

    While a region waits for this stream it cannot read its other streams. Blocking their writers could block the very
    item it waits for (a deadlock), so these writers get credit.
    """
    reader.waiting = retry
    if not reader.siblings:
        reader.notify_at = item_count
    for sibling in reader.siblings:
        grant_credit(run, sibling)


def grant_credit(run: Run, reader: ReaderEnd) -> None:
    """Unblock the writer as if every received item had been read."""
    if not reader.is_detached:
        send_credit(run, reader, reader.total)


def take_next(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Get the next item, or the default once the stream is closed."""
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


def release(run: Run, reader: ReaderEnd, count: int) -> None:
    """Drop the first `count` items and return credit to the writer."""
    reader.drop(count)
    send_credit(run, reader, count)


def send_credit(run: Run, reader: ReaderEnd, count: int) -> None:
    """Allow the writer to be `bound` items ahead of the first `count`."""
    seat, stream = reader.source
    if seat == run.program.seat:
        on_consumed(run, run.writer(stream, reader.path), reader.number, count)
    else:
        run.outbox.append(stream_consumed(seat, stream, reader.path, reader.number, count))


def on_consumed(run: Run, writer: WriterEnd, reader: int, count: int) -> None:
    """Apply a reader's credit, which can arrive before the stream is opened here."""
    run.todo.extend(writer.release(reader, count))
    if writer.is_over:
        del run.writers[writer.number, writer.path]


def close_writer(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Close a stream after its last put."""
    writer: WriterEnd = frame.slots[instruction.args[0]]
    for reader in writer.local_readers:
        close(run, reader)
    for seat, number in writer.remote_readers:
        run.outbox.append(stream_closed(seat, number, writer.path))
    writer.is_closed = True
    if writer.is_over:
        del run.writers[writer.number, writer.path]
    return True


def close(run: Run, reader: ReaderEnd) -> None:
    """Mark the end of the stream for a reader."""
    reader.is_closed = True
    if reader.waiting is not None:
        run.todo.append(reader.waiting)
        reader.waiting = None
    remove_reader(run, reader)


def detach(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Detach a reader after its last get."""
    detach_reader(run, frame.slots[instruction.args[0]])
    return True


def detach_reader(run: Run, reader: ReaderEnd) -> None:
    """Discard all further items of a reader, so that it never blocks the writer."""
    reader.is_detached = True
    reader.notify_at = 0
    release(run, reader, UNBOUNDED_ITEMS)
    remove_reader(run, reader)


def remove_reader(run: Run, reader: ReaderEnd) -> None:
    """Delete a reading end once it is both closed and detached."""
    if reader.is_closed and reader.is_detached:
        run.readers.pop((reader.number, reader.path), None)
