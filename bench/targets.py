"""Claims made of rows: each figure has a bar, and what a claim says is the least share of a bar that was reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from bench.claims import Claim, Row, print_table

Metric: TypeAlias = Callable[["Table"], float]
"""How a figure is read from rows."""
TargetedMetric: TypeAlias = tuple[Metric, float]
"""How a figure is read from rows, and its bar."""


class Table:
    """Rows by what they are called. A row whose name begins with blanks belongs to the one above that does not."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: dict[str, Row] = {}
        above = ""
        for row in rows:
            above = above if row.name.startswith(" ") else row.name
            self._rows[row.name if row.name == above else f"{above}: {row.name.strip()}"] = row

    def __call__(self, name: str) -> float:
        """The median of a row."""
        return self._rows[name].median


def claim_targets(
    text: str, rows: Sequence[Row], figures: Mapping[str, TargetedMetric], context: Mapping[str, Metric] | None = None
) -> Claim:
    """Print the rows, and claim that every figure reaches its bar. Figures of `context` have none and are shown too."""
    print_table(rows)
    table = Table(rows)
    results = {name: (read(table), bar) for name, (read, bar) in figures.items()}
    share = min(value / bar for value, bar in results.values())
    payload = {name: f"{value:.2f} (bar {bar:g})" for name, (value, bar) in results.items()}
    payload |= {name: f"{read(table):.2f} (no bar)" for name, read in (context or {}).items()}
    return Claim(f"{text}; the least share of a bar", round(share, 2), 1.0, share >= 1, payload)
