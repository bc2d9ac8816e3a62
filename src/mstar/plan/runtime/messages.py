"""What one seat of a walk tells another. The path says which iteration of which region it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

IterationPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueSent:
    """A value that another seat made."""

    seat: int
    value: int
    path: IterationPath
    payload: Any


@dataclass(frozen=True, slots=True)
class StreamItem:
    """The next item of a stream, for one of its readers."""

    seat: int
    reader: int
    path: IterationPath
    payload: Any


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """Nothing more will come for this reader."""

    seat: int
    reader: int
    path: IterationPath


@dataclass(frozen=True, slots=True)
class StreamConsumed:
    """A reader is done with the first `count` items of a stream."""

    seat: int
    stream: int
    path: IterationPath
    reader: int
    count: int


SeatMessage = ValueSent | StreamItem | StreamClosed | StreamConsumed
"""Messages from one seat to another stay in order; messages of different seats need not."""
