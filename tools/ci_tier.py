"""Run one tier of the tests in CI, run what failed once more, and record every rerun.

A noisy machine delays a test now and then, so a failed test runs once more, alone. A rerun that passes is a flaky test,
not a success: it is recorded with its test id and the random seed of the tier, and CI fails if the reruns of a run
exceed MAX_RERUNS_PER_CASE.

    python -m tools.ci_tier RUN NAME ARGUMENTS...    # arguments of scripts/test
    python -m tools.ci_tier RUN                      # print the reruns of this run and judge them
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from tools.nightly import commit, count_cases

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / ".ci" / "reruns.jsonl"
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MAX_RERUNS_PER_CASE = Fraction(5, 10_000)
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
    seed, failed = random.randrange(2**32), list[str]()
    LAST_FAILED.unlink(missing_ok=True)  # failures of earlier runs
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        code = run_tests(*arguments, f"--randomly-seed={seed}", f"--junitxml={report}")
        cases = sum(count_cases(report.read_text("utf-8"))[:2]) if report.exists() else 0
    if code == SOME_FAILED:
        failed = [*json.loads(LAST_FAILED.read_text("utf-8"))]
        print(f"run again, alone: {' '.join(failed)}", flush=True)
        code = run_tests(*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures=none")
    return TierResult(run, commit(RECORDS), name, seed, cases, tuple(failed), "failed" if code else "passed"), code


def run_tests(*arguments: str) -> int:
    """Run scripts/test and return its exit code."""
    return subprocess.run(["scripts/test", *arguments], cwd=ROOT, check=False).returncode


def judge(results: Sequence[TierResult]) -> int:
    """Print all reruns; 1 if there are more than a run of this size is allowed."""
    cases = sum(result.cases for result in results)
    reruns = [(result, test) for result in results for test in result.reruns]
    allowed = int(cases * MAX_RERUNS_PER_CASE)
    print(f"reruns: {len(reruns)} of {cases} cases (allowed: {allowed})")
    for result, test in reruns:
        print(f"  {test}  (tier {result.tier}, seed {result.seed})")
    return int(len(reruns) > allowed)


def read(path: Path) -> list[TierResult]:
    """All recorded tiers, oldest first."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [TierResult(**entry | {"reruns": tuple(entry["reruns"])}) for entry in map(json.loads, lines)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
