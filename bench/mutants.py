"""Would the tests notice? Plants one bug at a time in a copy of the source and runs the tests that should object.

Each planted bug is a small, plausible mistake in the tracer, the planner or the interpreter. A bug that no test
notices has survived; a bug that no longer fits the source is an error here, so that the list stays true.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.claims import Claim

ROOT = Path(__file__).parent.parent
TESTS = [
    "tests/plan",
    "tests/testing",
    "tests/graph",
    "tests/property",
    "tests/walk",
    "tests/examples/test_examples.py",
]
"""Those that are quick to notice come first, and are not shuffled."""
TARGET = 0.9


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    file: str
    what: str
    old: str
    new: str


def load_mutants() -> list[Mutant]:
    """The bugs of `bench/mutants.toml`."""
    return [Mutant(**entry) for entry in tomllib.loads((ROOT / "bench/mutants.toml").read_text())["mutant"]]


def is_killed(mutant: Mutant | None) -> bool:
    """Whether the tests fail with this bug in the source; with none, they should not."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        if mutant is not None:
            plant(mutant, source / "mstar" / mutant.file)
        plain = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
        command = [sys.executable, "-m", "pytest", *plain, *TESTS]
        environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode > 1:
            raise RuntimeError(f"pytest could not run: {done.stdout.decode()[-2000:]}")
        return done.returncode == 1


def plant(mutant: Mutant, file: Path) -> None:
    """Put a bug into a file."""
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times, not once")
    file.write_text(text.replace(mutant.old, mutant.new))


def mutation_score() -> Claim:
    """Plant every bug and count those that a test notices."""
    if is_killed(None):
        raise RuntimeError("the tests fail without any planted bug: mend them first")
    mutants = load_mutants()
    with ThreadPoolExecutor(2) as pool:
        killed = []
        for mutant, is_dead in zip(mutants, pool.map(is_killed, mutants), strict=True):
            print(f"{'killed  ' if is_dead else 'SURVIVED'}  {mutant.file}: {mutant.what}", flush=True)
            killed.append(is_dead)
    value = sum(killed) / len(killed)
    text = f"the tests notice at least 9 of 10 of {len(mutants)} bugs planted in tracer, planner and interpreter"
    return Claim(text, round(value, 3), TARGET, value >= TARGET and len(mutants) >= 20)
