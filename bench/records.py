"""What benches gave: a file for each in bench/results, with its last runs. What is made of them is in bench/page.py.

A run is kept with what it printed and with the machine it ran on, so that a figure can be judged later. Names of hosts
and folders are not kept.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
MAX_RECORDS = 10
"""Maximum number of recorded runs of a benchmark."""
MAX_VALUES = 101
"""Of more repeats than these, the percentiles are kept: median, best and worst stay what they are."""


@dataclass(frozen=True)
class Machine:
    """What a bench ran on; `load` is how many processes wanted a core when it began."""

    cpu: str
    cores: int
    load: float
    python: str
    torch: str
    commit: str


@dataclass(frozen=True)
class Record:
    """One run of a bench."""

    date: str
    took_s: float
    machine: Machine
    claim: Claim
    rows: Sequence[Row]


def machine() -> Machine:
    """This machine, as it is now."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return Machine(
        cpu=models[0].partition(":")[2].strip() if models else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        load=round(os.getloadavg()[0], 1),
        python=platform.python_version(),
        torch=torch,
        commit=_commit(),
    )


def records(name: str) -> list[Record]:
    """The runs of a bench that were kept, the newest last."""
    path = RESULTS / f"{name}.json"
    return [_parse_record(kept) for kept in json.loads(path.read_text("utf-8"))] if path.exists() else []


def add_record(name: str, record: Record) -> None:
    """Add a run of a bench: a line of its file."""
    rows = [Row(row.name, row.unit, _thin_values(row.values)) for row in record.rows]
    added = Record(record.date, round(record.took_s, 1), record.machine, record.claim, rows)
    lines = [json.dumps(asdict(one), ensure_ascii=False) for one in [*records(name), added][-MAX_RECORDS:]]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def _parse_record(kept: dict[str, Any]) -> Record:
    rows = [Row(**row) for row in kept["rows"]]
    return Record(kept["date"], kept["took_s"], Machine(**kept["machine"]), Claim(**kept["claim"]), rows)


def _thin_values(values: Sequence[float]) -> list[float]:
    results = list(values)
    if len(results) > MAX_VALUES:
        ordered, step = sorted(results), (len(results) - 1) / (MAX_VALUES - 1)
        results = [ordered[round(at * step)] for at in range(MAX_VALUES)]
    return [float(f"{value:.5g}") for value in results]


def _commit() -> str:
    """Which commit this is, with a + if sources differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
    except OSError:  # no git
        return "unknown"
    is_changed = _git("diff", "--quiet", "HEAD", "--", "*.py").returncode
    return head.stdout.strip() + "+" * bool(is_changed) if head.returncode == 0 else "unknown"


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
