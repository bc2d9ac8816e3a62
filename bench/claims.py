"""What a benchmark is and returns, and how its result is printed. Nothing is run or recorded here."""

from __future__ import annotations

import json
import pkgutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A target and the value that was measured. `details` has further figures of the run."""

    claim: str
    value: float
    target: float
    is_met: bool
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        line = {"claim": self.claim, "value": self.value, "bar": self.target, "holds": self.is_met}
        return json.dumps(line | ({"more": self.details} if self.details else {}))


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
class Option:
    """A flag of one benchmark. Its function takes the value as a keyword argument of the same name."""

    name: str
    type: Callable[[str], Any]
    help: str
    """What the option sets, its unit, and its default."""


@dataclass(frozen=True)
class Bench:
    """A question, the function that answers it, and the answer that we want.

    A change of the workload or of the baseline increments `series`, and its decision note shows the figures of the old
    and the new series side by side. Only runs of the current series count for the claim; the others stay on record.
    """

    question: str
    function: str
    """`module:function`."""
    prints: str
    """What the run measures and prints."""
    target: str
    """The target in plain words; the number is that of the claim."""
    why_missed: str = ""
    """What limits the benchmark if it misses its target: one sentence without figures, which the records have."""
    series: int = 1
    decision: str = ""
    """File of the note in docs/decisions about the newest change of series."""
    is_speed: bool = True
    """Whether the figures depend on how busy the machine is. A count does not."""
    options: tuple[Option, ...] = ()
    """Flags that only this benchmark has."""

    def load(self) -> Callable[..., Claim]:
        """The function. Only what is measured is imported: most benches load torch."""
        return pkgutil.resolve_name(self.function)


def to_flags(options: Mapping[str, Any]) -> list[str]:
    """The command line words that set these options."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


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
