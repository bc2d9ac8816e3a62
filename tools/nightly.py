"""Run the nightly tests in parts, each with a time limit, and append the result of each part to a file.

The nightly tests take too long for CI: 50,000 scenarios of the fault simulator, all shards of the random walks, 105
kills, networks with the published weights of SmolLM2 and Whisper, every family of models where CI has one of a kind,
and large cases of other tests. A part that exceeds its limit is stopped and recorded as stopped. Lines are only
appended: the last ones are the last run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "nightly.jsonl"


@dataclass(frozen=True)
class Part:
    """Paths of the tests, other arguments for pytest, and the time limit."""

    paths: tuple[str, ...]
    limit_s: float
    options: tuple[str, ...] = ()


_NAMED = {
    "kills": Part(("tests/chaos/test_kill.py",), 15 * 60),
    "scenarios": Part(("tests/sim/test_scenarios.py",), 90 * 60),
    "random-walks": Part(("tests/property/test_random_walks.py",), 25 * 60),
    "real-weights": Part(("tests/nn/lm/test_smollm2.py", "tests/nn/lm/test_whisper.py"), 20 * 60),
    "networks": Part(("tests/nn",), 45 * 60),
    "families": Part(("tests/models",), 45 * 60),
    "processes": Part(("tests/chaos", "tests/cluster", "tests/integration", "tests/launch"), 35 * 60),
}
PARTS = _NAMED | {"others": Part(("tests",), 35 * 60)}
"""A path of one part inside a path of another one is left out there."""


@dataclass(frozen=True)
class Result:
    """One part of one run."""

    date: str
    commit: str
    """With a + if files differ from it."""
    part: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    status: str
    """passed, failed, or stopped: at the time limit, or without a report."""


def main(names: Sequence[str]) -> int:
    """Run these parts, or all of them; 0 if all passed."""
    unknown = set(names) - PARTS.keys()
    if unknown:
        print(f"unknown part: {', '.join(sorted(unknown))}\n  fix: use {', '.join(PARTS)}, or no name for all")
        return 2
    results = list[Result]()
    for name in names or PARTS:
        print(f"{name}: at most {PARTS[name].limit_s / 60:.0f} min", flush=True)
        results.append(run_part(name, PARTS[name]))
        append(RESULTS, results[-1])
    print(f"\n{'part':14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  status")
    for one in results:
        print(f"{one.part:14}{one.passed:8}{one.failed:8}{one.skipped:9}{one.seconds:9.0f}  {one.status}")
    return 0 if all(one.status == "passed" for one in results) else 1


def run_part(name: str, part: Part) -> Result:
    """Run pytest in a process group of its own, and stop all of it at the limit."""
    date, tested, start = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"), commit(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-m", "nightly", "-q", f"--junitxml={report}", *arguments(part)]
        tests = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            tests.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()
        passed, failed, skipped = count_cases(report.read_text("utf-8")) if report.exists() else (0, 0, 0)
    status = {0: "passed", 1: "failed"}.get(tests.returncode, "stopped")
    return Result(date, tested, name, passed, failed, skipped, round(time.monotonic() - start, 1), status)


def arguments(part: Part) -> list[str]:
    """Arguments for pytest: the paths of the part without those of other parts inside."""
    others = [path for other in PARTS.values() for path in other.paths if path not in part.paths]
    inside = [path for path in others if any(path.startswith(f"{own}/") for own in part.paths)]
    return [*part.paths, *part.options, *(f"--ignore={path}" for path in inside)]


def count_cases(report: str) -> tuple[int, int, int]:
    """Passed, failed and skipped cases of a JUnit report."""
    suites = list(ElementTree.fromstring(report).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def append(path: Path, result: Result) -> None:
    """Add a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def commit(results: Path = RESULTS) -> str:
    """The current commit, with a + if files other than the results differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    others = ["--", ".", f":!{results.relative_to(ROOT)}"]
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", *others], cwd=ROOT, check=False).returncode
    return head.stdout.strip() + "+" * bool(changed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
