"""What a bench is and gives, and how it is printed. Running benches and keeping what they gave is done elsewhere."""

from __future__ import annotations

import json
import pkgutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A sentence with a number in it, and the number that was measured. `more` holds further figures of the run."""

    claim: str
    value: float
    target: float
    is_met: bool
    details: dict[str, Any] = field(default_factory=dict)

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


@dataclass(frozen=True)
class Bench:
    """A question, the function that answers it as `module:function`, and what it prints on the way."""

    question: str
    function: str
    prints: str

    def load(self) -> Callable[[], Claim]:
        """The function. Only what is measured is imported: most benches load torch."""
        return pkgutil.resolve_name(self.function)


printed_rows: list[Row] = []
"""All rows that tables have shown in this process: a run is recorded with what it printed."""


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """How many times the other one is, by the middle of the pairs: a change of the machine's mood meets both."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def print_table(rows: Sequence[Row]) -> None:
    """Medians with the spread of the repeats."""
    printed_rows.extend(rows)
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'median':>9} {'best':>9} {'worst':>9}  unit")
    for row in rows:
        print(f"{row.name:{width}}  {row.median:9.2f} {row.best:9.2f} {row.worst:9.2f}  {row.unit}")
