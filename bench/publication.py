"""Which runs of a benchmark count for its claim, and what the claim is.

1. A run counts if it ended without an error, in the current series, from a clean tree, at a commit that is in the
   repository, on a machine that was not busy at the start (counts such as killed mutants do not depend on that).
2. The claim is made of all runs that count for one commit and one processor: the newest of those with at least
   MIN_RUNS runs. With fewer runs nothing is claimed.
3. The value is the median. The target is met if the median run met it, and more than half of the runs: a claim may
   have further conditions than its value.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.claims import Bench, Claim
from bench.history import History, Record
from bench.repository import ROOT, Repository

MIN_RUNS = 5
"""Runs of one commit that a claim needs."""


@dataclass(frozen=True)
class Run:
    """A run that counts."""

    record: Record
    claim: Claim


@dataclass(frozen=True)
class Publication:
    """The runs of a benchmark that make its claim, and all others with the reason why they do not."""

    runs: Sequence[Run]
    others: Sequence[tuple[Record, str]]

    @property
    def is_published(self) -> bool:
        """Whether there are enough runs for a claim."""
        return len(self.runs) >= MIN_RUNS

    @property
    def met(self) -> int:
        """How many of the runs met the target."""
        return sum(run.claim.is_met for run in self.runs)

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self._values)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest value."""
        return min(self._values), max(self._values)

    @property
    def median_run(self) -> Run:
        """The run in the middle; of two, one that missed the target."""
        return min(self._middle, key=lambda run: run.claim.is_met)

    @property
    def is_met(self) -> bool:
        """Whether the target is met: by the median run, and by more than half of all runs."""
        return self.median_run.claim.is_met and self.met * 2 > len(self.runs)

    @property
    def verdict(self) -> str:
        """The state of the claim in a word or two."""
        if not self.is_published:
            return "not enough runs"
        return "met" if self.is_met else "missed"

    @property
    def _values(self) -> list[float]:
        return [run.claim.value for run in self.runs]

    @property
    def _middle(self) -> Sequence[Run]:
        ordered, last = sorted(self.runs, key=lambda run: run.claim.value), len(self.runs) - 1
        return ordered[last // 2 : last // 2 + 2 - len(self.runs) % 2]


def publish(bench: Bench, records: Sequence[Record], repository: Repository) -> Publication:
    """Choose the runs that make the claim of a benchmark."""
    groups: dict[tuple[str, str], list[Run]] = {}
    others: list[tuple[Record, str]] = []
    for record in records:
        if reason := reason_against(bench, record, repository):
            others.append((record, reason))
        elif record.claim:
            # Moved to the end: the last group is the one with the newest run.
            own = groups.pop((record.commit, record.machine.cpu), [])
            groups[record.commit, record.machine.cpu] = [*own, Run(record, record.claim)]
    newest = [runs for runs in reversed(groups.values()) if len(runs) >= MIN_RUNS] or [*reversed(groups.values())]
    chosen = newest[0] if newest else []
    for runs in groups.values():
        if runs is not chosen:
            others += [(run.record, "another commit or CPU") for run in runs]
    return Publication(chosen, sorted(others, key=lambda other: other[0].date))


def publish_all(benches: Mapping[str, Bench], root: Path = ROOT) -> dict[str, Publication]:
    """The claims of several benchmarks."""
    history, repository = History(root), Repository(root)
    return {name: publish(bench, history.records(name), repository) for name, bench in benches.items()}


def reason_against(bench: Bench, record: Record, repository: Repository) -> str:
    """Why a run does not count, or nothing."""
    if record.series != bench.series:
        return f"series {record.series}, the current one is {bench.series}"
    if record.claim is None:
        return f"ended with {record.error}"
    if record.is_clean is None:
        return "unknown whether the tree was clean"
    if not record.is_clean:
        return "dirty tree"
    if not repository.contains(record.commit):
        return "commit not in the repository"
    if bench.is_speed and record.load.is_busy is not False:
        return "the machine was busy"
    return ""
