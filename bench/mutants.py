"""Do the tests notice bugs? Plants one bug at a time in a copy of the source and runs the tests that should fail.

The bugs are in `bench/planted`, one file per package. docs/mutation-testing.md has the rule by which their places were
chosen, and the bugs that no test noticed in the newest run.

    python -m bench mutants --runs 5      # all bugs, a fifth in each run; recorded, and in docs/mutation-testing.md
    python -m bench.mutants server nn     # two packages; printed only
    python -m bench.mutants --every 8     # each eighth bug; printed only

A bug is killed if a test fails with it and the same test passes without it, so a flaky test does not count. A run that
does not end in time does not count either.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.claims import Claim
from bench.parts import PARTS, Parts, part_of

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "bench" / "planted"
PAGE = ROOT / "docs" / "mutation-testing.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
"""The generated part of the page is between these lines."""
OPERATORS = ("off-by-one", "wrong owner", "missing release", "dropped field", "sign", "order", "stale value")
"""Kinds of bugs, in the order in which they were planted in the files of a package."""
RUNTIME_PACKAGES = ("server", "frontend", "conductor", "worker", "nn", "transfer", "wire", "launch")
"""Packages with a target of their own."""
MIN_BUGS, MIN_BUGS_PER_PACKAGE = 120, 8
TARGET, PACKAGE_TARGET = 0.9, 0.8
"""Minimum share of bugs that are killed, in total and in each package of RUNTIME_PACKAGES."""
RUN_TIMEOUT_S = 600.0
"""Maximum duration of the tests of one bug."""
TEST_TIMEOUT_S = 60
"""Maximum duration of one test. A bug can make it wait forever."""
PARALLEL_RUNS = 2


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    file: str
    """Path relative to src/mstar."""
    what: str
    old: str
    """A snippet that occurs exactly once in the file."""
    new: str
    operator: str = ""
    tests: tuple[str, ...] = ()
    """Paths of the tests that should fail, the quickest first."""
    audit: str = ""
    """Number of the bug in the audit that planted it first."""

    @property
    def package(self) -> str:
        """First folder of its file."""
        return self.file.partition("/")[0]


def load_mutants() -> list[Mutant]:
    """All bugs, by package."""
    mutants: list[Mutant] = []
    for path in sorted(PLANTED.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        mutants += [
            Mutant(**{**entry, "tests": tuple(entry.get("tests", content["tests"]))}) for entry in content["mutant"]
        ]
    return mutants


def is_killed(mutant: Mutant) -> bool:
    """Whether a test fails with this bug in the source and passes without it."""
    with tempfile.TemporaryDirectory() as folder:
        source, cache = Path(folder) / "src", Path(folder) / "cache"
        shutil.copytree(ROOT / "src", source)
        plant(mutant, source / "mstar" / mutant.file)
        if run_tests(source, mutant.tests, cache) != 1:
            return False
        return run_tests(ROOT / "src", mutant.tests, cache, "--lf", "--lfnf=none") == 0


def run_tests(source: Path, tests: Sequence[str], cache: Path, *options: str) -> int:
    """Run tests with this source until the first failure. Returns pytest's exit code, or -1 after a timeout."""
    plain = ["-x", "-q", "--no-header", "-p", "no:randomly", f"--timeout={TEST_TIMEOUT_S}", "-o", f"cache_dir={cache}"]
    command = [sys.executable, "-m", "pytest", *plain, *options, *tests]
    environment = os.environ | {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": str(cache)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest could not run {list(tests)}: {done.stdout.decode()[-2000:]}")
    return done.returncode


def plant(mutant: Mutant, file: Path) -> None:
    """Put a bug into a file."""
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} occurs {text.count(mutant.old)} times, not once")
    file.write_text(text.replace(mutant.old, mutant.new))


def find_survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Plant every bug; print the outcome of each, and of each package."""
    survivors: list[Mutant] = []
    with ThreadPoolExecutor(PARALLEL_RUNS) as pool:
        for mutant, is_dead in zip(mutants, pool.map(is_killed, mutants), strict=True):
            print(f"{'killed  ' if is_dead else 'SURVIVED'}  {mutant.file}: {mutant.what}", flush=True)
            if not is_dead:
                survivors.append(mutant)
    totals, survived = (Counter(mutant.package for mutant in group) for group in (mutants, survivors))
    for package, total in sorted(totals.items()):
        print(f"{package:10} {total - survived[package]:3} of {total:3}")
    print(f"{'all':10} {len(mutants) - len(survivors):3} of {len(mutants):3}", flush=True)
    return survivors


def are_targets_met(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> bool:
    """Whether enough bugs were killed, in total and in each package that has a target."""
    totals, survived = (Counter(mutant.package for mutant in group) for group in (mutants, survivors))
    are_packages_met = all(
        totals[package] >= MIN_BUGS_PER_PACKAGE and 1 - survived[package] / totals[package] >= PACKAGE_TARGET
        for package in RUNTIME_PACKAGES
    )
    return are_packages_met and len(mutants) >= MIN_BUGS and 1 - len(survivors) / len(mutants) >= TARGET


def mutation_score() -> Claim:
    """Plant the next fifth of the bugs, and write the page with all survivors of this commit."""
    mutants, parts = load_mutants(), Parts("mutants")
    chosen = part_of(mutants, parts.next)
    survivors = find_survivors(chosen)
    earlier = {what for record in parts.done() if record.claim for what in record.claim.details["survivors"]}
    planted = [mutant for part in range(parts.next + 1) for mutant in part_of(mutants, part)]
    survived = [mutant for mutant in planted if mutant in survivors or mutant.what in earlier]
    write_page(planted, survived, len(mutants))
    is_last = parts.next == PARTS - 1
    value = 1 - len(survivors) / len(chosen)
    return Claim(
        f"the tests notice at least 90 % of {len(mutants)} planted bugs, a fifth in each run, and 80 % in each package "
        "of the runtime",
        round(value, 3),
        TARGET,
        value >= TARGET and (not is_last or are_targets_met(mutants, survived)),
        {"part": parts.next + 1, "planted": len(chosen), "survivors": [mutant.what for mutant in survivors]}
        | ({"shares": killed_shares(mutants, survived)} if is_last else {}),
    )


def killed_shares(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> dict[str, float]:
    """Share of killed bugs in each package of the runtime."""
    totals, survived = (Counter(mutant.package for mutant in group) for group in (mutants, survivors))
    return {package: round(1 - survived[package] / totals[package], 3) for package in RUNTIME_PACKAGES}


def write_page(planted: Sequence[Mutant], survivors: Sequence[Mutant], total: int) -> None:
    """Replace the generated part of the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    progress = f"{len(planted)} of {total} bugs planted at the newest commit.\n\n"
    PAGE.write_text(before + BEGIN + progress + format_results(planted, survivors) + END + after, "utf-8")


def format_results(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> str:
    """The table of packages and the list of survivors, in Markdown."""
    totals, survived = (Counter(mutant.package for mutant in group) for group in (mutants, survivors))
    lines = ["| package | killed | planted |", "|---|---|---|"]
    lines += [f"| {package} | {total - survived[package]} | {total} |" for package, total in sorted(totals.items())]
    lines += [f"| **all** | **{len(mutants) - len(survivors)}** | **{len(mutants)}** |", ""]
    lines += [f"- `{mutant.file}`: {mutant.what} ({mutant.operator})" for mutant in survivors] or ["No survivors."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Plant a part of the bugs and print the result."""
    parser = argparse.ArgumentParser(description="Plant bugs and run the tests that should notice them.")
    parser.add_argument("packages", nargs="*", help="packages to plant bugs in (default: all)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take only each N-th bug (default: 1)")
    options = parser.parse_args()
    chosen = [mutant for mutant in load_mutants() if not options.packages or mutant.package in options.packages]
    return 1 if find_survivors(chosen[:: options.every]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
