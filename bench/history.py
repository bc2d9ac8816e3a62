"""Every run of every benchmark: bench/results/NAME.jsonl, one line of JSON for each run.

Lines are appended and never changed or removed, so that a reader sees the runs that missed their target too. A field
that was not recorded in the past is "unknown" in the file and None here. Which runs count for a claim is decided in
bench/publication.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row
from bench.machine import Machine
from bench.repository import ROOT

FOLDER = Path("bench/results")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Load:
    """Work of others, as shares of the CPU time of all cores, and the load average at the start."""

    load_average: float | None
    other_before: float | None
    steal_before: float | None
    other_during: float | None
    steal_during: float | None
    is_busy: bool | None
    """Whether the run was started although the machine was busy."""


@dataclass(frozen=True)
class Record:
    """One run. `claim` is missing if the run ended with an error; `error` is then the name of its class."""

    date: str
    series: int
    commit: str
    is_clean: bool | None
    """Whether the tree was that commit, before the run and after it."""
    machine: Machine
    load: Load
    took_s: float
    cpu_s: float | None
    """CPU seconds of the benchmark and of the children that it waited for."""
    error: str
    claim: Claim | None
    rows: Sequence[Row]


class History:
    """The runs of a repository."""

    def __init__(self, root: Path = ROOT) -> None:
        self._folder = root / FOLDER

    def records(self, name: str) -> list[Record]:
        """The runs of a benchmark, the newest last."""
        path = self._folder / f"{name}.jsonl"
        return [parse_record(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def append(self, name: str, record: Record) -> None:
        """Add a run to the file of its benchmark."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(render_record(record) + "\n")


def render_record(record: Record) -> str:
    """A line of a file."""
    rows = [replace(row, values=[float(f"{value:.6g}") for value in row.values]) for row in record.rows]
    fields = asdict(replace(record, took_s=round(record.took_s, 1), rows=rows))
    return json.dumps(_marked(fields | {"load": _marked(fields["load"])}), ensure_ascii=False)


def parse_record(line: str) -> Record:
    """The run of a line."""
    fields: dict[str, Any] = json.loads(line)
    fields["machine"] = Machine(**fields["machine"])
    fields["load"] = Load(**_unmarked(fields["load"]))
    fields["claim"] = Claim(**fields["claim"]) if fields["claim"] else None
    fields["rows"] = [Row(**row) for row in fields["rows"]]
    return Record(**_unmarked(fields))


def _marked(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: UNKNOWN if value is None and key != "claim" else value for key, value in fields.items()}


def _unmarked(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == UNKNOWN and key != "commit" else value for key, value in fields.items()}
