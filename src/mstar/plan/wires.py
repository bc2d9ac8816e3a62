"""What one seat of a walk tells another. The path says which iteration of which region it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueSent:
    """A value that another seat made."""

    seat: int
    value: int
    path: Path
    payload: Any


@dataclass(frozen=True, slots=True)
class ItemSent:
    """The next item of a stream, for one of its readers."""

    seat: int
    reader: int
    path: Path
    payload: Any


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more will come for this reader."""

    seat: int
    reader: int
    path: Path


@dataclass(frozen=True, slots=True)
class Released:
    """A reader is done with the first `count` items of a stream."""

    seat: int
    stream: int
    path: Path
    reader: int
    count: int


Message = ValueSent | ItemSent | Closed | Released
"""Messages from one seat to another stay in order; messages of different seats need not."""
