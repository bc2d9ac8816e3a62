"""Run one tier of the tests in CI, run what failed once more, and record reruns and times.

A noisy machine delays a test now and then, so a failed test runs once more, alone. A rerun that passes is a flaky test,
not a success: it is recorded with its test id and the random seed of the tier, and CI fails if the reruns of a run
exceed MAX_RERUNS_PER_CASE. CI also fails if one case takes longer than MAX_CASE_S: it belongs in the nightly tier.

    python -m tools.ci_tier RUN NAME ARGUMENTS...    # arguments of scripts/test
    python -m tools.ci_tier RUN                      # print times and reruns of this run and judge them
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.nightly import commit, count_cases

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / ".ci" / "reruns.jsonl"
CACHES = ROOT / ".pytest_cache"
"""Has a folder for each tier, with the tests that failed: tiers can run at the same time."""
MAX_RERUNS_PER_CASE = Fraction(5, 10_000)
LONG_CASE_S, MAX_CASE_S = 20.0, 240.0
"""Seconds from which a case is listed, and above which it fails the run. The limit is several times what the longest
case takes on two cores, so that a noisy machine does not exceed it."""
FIX = "fix: make it smaller, or move it to the nightly tier (docs/contributing.md)"
SOME_FAILED = 1
"""Exit code of pytest if tests ran and some failed. Other codes are errors of the run itself."""


@dataclass(frozen=True)
class TierResult:
    """One tier of one run of CI."""

    run: str
    """Start of the run, the same for all its tiers."""
    commit: str
    tier: str
    seed: int
    """Random seed of the first pass: `--randomly-seed` repeats its order."""
    cases: int
    reruns: tuple[str, ...]
    """Ids of the tests that failed and ran again."""
    status: str
    """passed or failed."""
    seconds: float = 0.0
    """Duration of the tier, reruns included."""
    long_cases: tuple[tuple[str, float], ...] = ()
    """Cases of LONG_CASE_S or more with their seconds, the longest first."""


def main(words: Sequence[str]) -> int:
    """Run a tier, or judge all tiers of a run; 0 if it passed."""
    run, *tier = words
    if not tier:
        return judge([result for result in read(RECORDS) if result.run == run])
    result, code = run_tier(run, tier[0], tier[1:])
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    return code


def run_tier(run: str, name: str, arguments: Sequence[str]) -> tuple[TierResult, int]:
    """Run the tests, and those that failed once more in one process."""
    seed, failed, start = random.randrange(2**32), list[str](), time.monotonic()
    cache = CACHES / name
    last_failed = cache / "v" / "cache" / "lastfailed"
    last_failed.unlink(missing_ok=True)  # failures of earlier runs
    arguments = [*arguments, "-o", f"cache_dir={cache}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        code = run_tests(*arguments, f"--randomly-seed={seed}", f"--junitxml={report}")
        text = report.read_text("utf-8") if report.exists() else "<testsuites/>"
    if code == SOME_FAILED:
        failed = [*json.loads(last_failed.read_text("utf-8"))]
        print(f"run again, alone: {' '.join(failed)}", flush=True)
        code = run_tests(*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures=none")
    result = TierResult(
        run,
        commit(RECORDS),
        name,
        seed,
        cases=sum(count_cases(text)[:2]),
        reruns=tuple(failed),
        status="failed" if code else "passed",
        seconds=round(time.monotonic() - start, 1),
        long_cases=find_long_cases(text),
    )
    return result, code


def run_tests(*arguments: str) -> int:
    """Run scripts/test and return its exit code."""
    return subprocess.run(["scripts/test", *arguments], cwd=ROOT, check=False).returncode


def find_long_cases(report: str) -> tuple[tuple[str, float], ...]:
    """Cases of a JUnit report that took LONG_CASE_S or more, with their fixtures; the longest first."""
    cases = [
        (f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}", float(case.get("time", "0")))
        for case in ElementTree.fromstring(report).iter("testcase")
    ]
    return tuple(sorted((case for case in cases if case[1] >= LONG_CASE_S), key=lambda case: -case[1]))


def judge(results: Sequence[TierResult]) -> int:
    """Print minutes, long cases and reruns; 1 if a case is too long, or for more reruns than a run of this size has."""
    print("\n".join(f"{one.tier:12}{one.cases:6} cases{one.seconds / 60:7.1f} min" for one in results))
    print(f"{'all tiers':30}{sum(one.seconds for one in results) / 60:.1f} min")
    long_cases = [case for result in results for case in result.long_cases]
    for test, seconds in long_cases:
        print(f"  {seconds:.0f} s: {test}{f', the limit is {MAX_CASE_S:.0f} s; {FIX}' * (seconds > MAX_CASE_S)}")
    cases = sum(result.cases for result in results)
    reruns = [(result, test) for result in results for test in result.reruns]
    allowed = int(cases * MAX_RERUNS_PER_CASE)
    print(f"reruns: {len(reruns)} of {cases} cases (allowed: {allowed})")
    for result, test in reruns:
        print(f"  {test}  (tier {result.tier}, seed {result.seed})")
    return int(len(reruns) > allowed or any(seconds > MAX_CASE_S for _, seconds in long_cases))


def read(path: Path) -> list[TierResult]:
    """All recorded tiers, oldest first."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [_from_entry(json.loads(line)) for line in lines]


def _from_entry(entry: dict[str, Any]) -> TierResult:
    long_cases = tuple((test, seconds) for test, seconds in entry.get("long_cases", ()))
    return TierResult(**entry | {"reruns": tuple(entry["reruns"]), "long_cases": long_cases})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
