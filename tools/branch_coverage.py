"""Branch coverage of each package by the unit tests: measured by a command, recorded, and judged in CI.

    python -m tools.branch_coverage measure    # run the unit tests with tracing, and append a record
    python -m tools.branch_coverage            # print the last record, and fail below the floor

Tracing takes half again as long as the unit tests do, and makes tests that limit CPU time fail. So CI does not trace:
it prints the last record, and fails if a package is below its floor. Tests that failed under tracing are recorded too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.nightly import ROOT, commit, count_cases

RECORDS = ROOT / "docs" / "branch-coverage.jsonl"
FLOOR_PERCENT = 80.0
"""Least share of lines and branches that the unit tests of a package reach."""
FLOORS_PERCENT = {"graph": 95.0, "walk": 95.0, "plan": 95.0, "media": 75.0}
"""Floors of packages that have another one. Decoders of `media` run in a process of their own, which is not traced."""


@dataclass(frozen=True)
class Coverage:
    """One measurement."""

    date: str
    commit: str
    """With a + if files differ from it."""
    passed: int
    failed: int
    """Tests that failed under tracing."""
    packages: Mapping[str, float]
    """Percent of lines and branches, by package."""


def measure() -> Coverage:
    """Run the unit tests with tracing."""
    date, tested = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"), commit(RECORDS)
    with tempfile.TemporaryDirectory() as folder:
        report, cases = Path(folder, "coverage.json"), Path(folder, "report.xml")
        options = ("-n", "2", "--dist", "worksteal", "-q", "--cov=mstar", f"--cov-report=json:{report}")
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={cases}"]
        subprocess.run(command, cwd=ROOT, check=False)
        passed, failed, _ = count_cases(cases.read_text("utf-8"))
        packages = by_package(json.loads(report.read_text("utf-8"))["files"])
    return Coverage(date, tested, passed, failed, packages)


def by_package(files: Mapping[str, Any]) -> dict[str, float]:
    """Percent of lines and branches by package of `src/mstar`. Modules of the top folder are the package "mstar"."""
    totals, covered = defaultdict[str, int](int), defaultdict[str, int](int)
    for name, file in files.items():
        parts, summary = Path(name).parts, file["summary"]
        inside = parts[parts.index("mstar") + 1 :]
        package = inside[0] if len(inside) > 1 else "mstar"
        totals[package] += summary["num_statements"] + summary["num_branches"]
        covered[package] += summary["covered_lines"] + summary["covered_branches"]
    return {
        package: round(100 * covered[package] / totals[package], 1) for package in sorted(totals) if totals[package]
    }


def below_floor(packages: Mapping[str, float]) -> list[str]:
    """Packages whose coverage is below their floor."""
    return [package for package, percent in packages.items() if percent < FLOORS_PERCENT.get(package, FLOOR_PERCENT)]


def last_record() -> Coverage:
    """The last measurement."""
    return Coverage(**json.loads(RECORDS.read_text("utf-8").splitlines()[-1]))


def main(words: Sequence[str]) -> int:
    """Measure, or print and judge the last record; 0 if no package is below its floor."""
    if words == ["measure"]:
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(measure())) + "\n")
    elif words:
        print("usage: python -m tools.branch_coverage [measure]")
        return 2
    record = last_record()
    print(f"branch coverage of {record.commit}, {record.date} UTC: {record.passed} passed, {record.failed} failed")
    for package, percent in record.packages.items():
        print(f"  {package:12} {percent:5.1f} %   floor {FLOORS_PERCENT.get(package, FLOOR_PERCENT):g} %")
    if missed := below_floor(record.packages):
        print(
            f"below the floor: {', '.join(missed)}\n  fix: add tests, and run `python -m tools.branch_coverage measure`"
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
