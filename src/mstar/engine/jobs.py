"""Jobs of the engine: one call of an op for one request, and its possible results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Job:
    """One call of an op. Submit the same job again while its result is UNFINISHED."""

    arguments: dict[str, Any]
    done: int = 0
    """Positions along the batch dimension that earlier chunks have processed."""
    end: int = 0
    """End position of the current chunk. The engine sets this field and all below."""
    length: int = 0
    """Positions in total."""
    chunk_length: int = 0
    """Positions in the current chunk."""
    is_whole: bool = False
    """Whether the current chunk has all positions."""
    chunk_results: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """Values of the finished chunks."""
    rid: str = ""
    """Request that makes the call. It has no effect on the execution."""


@dataclass(slots=True)
class JobDone:
    """The call succeeded."""

    values: tuple[Any, ...]


@dataclass(slots=True)
class JobFailed:
    """The call failed. Its states are rolled back."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The call has run in part or not at all."""


UNFINISHED = Unfinished()
"""The only instance of Unfinished."""

Result = JobDone | JobFailed | Unfinished
