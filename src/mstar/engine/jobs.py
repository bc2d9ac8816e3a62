"""Jobs: one call of an op for one request, and what can come of it. What runs them is in `engine`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Job:
    """One call of an op: its arguments by name. Hand the same job in again while its result is UNFINISHED."""

    arguments: dict[str, Any]
    done: int = 0
    """How many positions along the batch's dimension earlier pieces have brought."""
    end: int = 0
    """Where the piece ends that is run now; set by the engine, as is what follows."""
    length: int = 0
    """How many positions there are."""
    chunk_length: int = 0
    """How many the piece has that is run now."""
    chunk_results: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """What earlier pieces gave."""


@dataclass(slots=True)
class JobDone:
    """The op ran; what it gave."""

    values: tuple[Any, ...]


@dataclass(slots=True)
class JobFailed:
    """The call failed, and left its states as they were."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A piece of the call ran, or none of it yet."""


UNFINISHED = Unfinished()
"""The only one there is."""

Result = JobDone | JobFailed | Unfinished
"""What came of a job."""
