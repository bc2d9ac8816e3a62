"""Messages between the partitions of one walk, and their wire format.

One type serves both ends: a partition run puts messages into its outbox, `wire.messages.DataBatch` carries them between
processes, and the receiving run consumes them. It is a NamedTuple because msgspec encodes one as a compact array, and
because authors plan and check walks with the standard library only. In a DataBatch the payload is wrapped in a
`wire.message.Value`, which the process's codec packs.

Messages from one partition to another stay in order. Messages from different partitions do not.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

IterationPath = tuple[int, ...]
"""Iteration index of each enclosing region, outermost first."""


class MessageKind(IntEnum):
    """What a partition message carries."""

    VALUE = 0
    """A value that another partition computed."""
    STREAM_ITEM = 1
    """The next item of a stream, for one reader."""
    STREAM_CLOSED = 2
    """End of stream, for one reader."""
    STREAM_CONSUMED = 3
    """Flow-control credit: a reader has released the first `item_count` items."""


class PartitionMessage(NamedTuple):
    """One message to the partition at `seat`. Build it with the functions below."""

    kind: MessageKind
    seat: int
    target: int
    """Number of the value (VALUE), the reader (STREAM_ITEM, STREAM_CLOSED) or the stream (STREAM_CONSUMED)."""
    path: IterationPath
    payload: Any = None
    """The value or the item."""
    reader: int = -1
    """STREAM_CONSUMED: the reader that released items."""
    item_count: int = 0
    """STREAM_CONSUMED: items released since the start of the stream."""

    @property
    def has_payload(self) -> bool:
        """Whether `payload` is part of the message: None is a valid value."""
        return self.kind <= MessageKind.STREAM_ITEM

    def with_payload(self, payload: Any) -> PartitionMessage:
        """Copy of a VALUE or STREAM_ITEM message with another payload."""
        return PartitionMessage(self[0], self[1], self[2], self[3], payload)


def value_sent(seat: int, value: int, path: IterationPath, payload: Any) -> PartitionMessage:
    """A value for the partition at `seat`."""
    return PartitionMessage(MessageKind.VALUE, seat, value, path, payload)


def stream_item(seat: int, reader: int, path: IterationPath, payload: Any) -> PartitionMessage:
    """The next item for a reader at `seat`."""
    return PartitionMessage(MessageKind.STREAM_ITEM, seat, reader, path, payload)


def stream_closed(seat: int, reader: int, path: IterationPath) -> PartitionMessage:
    """End of stream for a reader at `seat`."""
    return PartitionMessage(MessageKind.STREAM_CLOSED, seat, reader, path)


def stream_consumed(seat: int, stream: int, path: IterationPath, reader: int, count: int) -> PartitionMessage:
    """Credit for the writer of a stream at `seat`: `reader` has released `count` items."""
    return PartitionMessage(MessageKind.STREAM_CONSUMED, seat, stream, path, None, reader, count)
