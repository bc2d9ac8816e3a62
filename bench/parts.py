"""Benchmarks that count something take long and give the same result each time, so each run does one part of the work.

A claim needs five runs of one commit (bench/publication.py). For a speed, five runs show the spread. A count has none:
its five runs divide the work instead, and are the whole together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from bench.history import History, Record
from bench.publication import MIN_RUNS
from bench.repository import ROOT, Repository

PARTS = MIN_RUNS
T = TypeVar("T")


class Parts:
    """The parts of a benchmark that were run from a clean tree at the current commit."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        commit = Repository(root).commit()
        self._records = [
            record
            for record in History(root).records(name)
            if record.commit == commit and record.is_clean and record.claim
        ]

    @property
    def next(self) -> int:
        """Index of the next part: they are run in turn."""
        return len(self._records) % PARTS

    def done(self) -> Sequence[Record]:
        """The runs since the first part was last begun."""
        return self._records[len(self._records) - self.next :]


def part_of(work: Sequence[T], part: int) -> Sequence[T]:
    """Each fifth item, so that every part has items of all kinds."""
    return work[part::PARTS]
