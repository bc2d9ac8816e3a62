"""What a bench gives, and how it is printed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A sentence with a number in it, and the number that was measured. `more` holds further figures of the run."""

    claim: str
    value: float
    bar: float
    holds: bool
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if value != {}})


@dataclass(frozen=True)
class Row:
    """One measured thing, repeated."""

    name: str
    unit: str
    values: Sequence[float]

    @property
    def best(self) -> float:
        """The best of the repeats: of something a second, the most."""
        return max(self.values) if self.unit.endswith("/s") else min(self.values)

    @property
    def worst(self) -> float:
        """The worst of them."""
        return min(self.values) if self.unit.endswith("/s") else max(self.values)

    @property
    def median(self) -> float:
        """The middle of the repeats."""
        return statistics.median(self.values)


def paired(one: Sequence[float], other: Sequence[float]) -> float:
    """How many times the other one is, by the middle of the pairs: a change of the machine's mood meets both."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def print_table(rows: Sequence[Row]) -> None:
    """Medians with the spread of the repeats."""
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'median':>9} {'best':>9} {'worst':>9}  unit")
    for row in rows:
        print(f"{row.name:{width}}  {row.median:9.2f} {row.best:9.2f} {row.worst:9.2f}  {row.unit}")
