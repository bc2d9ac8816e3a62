"""The simulator as a claim: many scenarios without a violation, and bugs planted in the cores that it must notice.

Each planted bug is a small, plausible mistake in a core or in the link. It is run until a scenario goes wrong. A bug
that survives is a missing invariant; one that no longer fits the source is an error here, so that the list stays true.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.claims import Claim
from bench.mutants import ROOT, Mutant, plant
from mstar.sim.runner import run_in_subprocesses
from mstar.sim.scenario import FIRST_SCALING_SEED, FIRST_SHARDED_SEED

SCENARIOS = 50_000
SCENARIOS_PER_MUTANT = 2_000
"""In how many scenarios a planted bug has to be noticed."""
SCALING_SCENARIOS = 10_000
"""Further scenarios with autoscaling, and the same number with several conductors."""
SCALING_ONLY_FILES = (
    "conductor/membership.py",
    "conductor/scaling/autoscaler.py",
    "conductor/scaling/replica_group.py",
    "conductor/scaling/rollout.py",
    "conductor/scaling/weights_versions.py",
)
"""Files whose mutants are run only in such scenarios, because some of them are not detected in others."""
JOBS = 2
TARGET = 0.9


def load_mutants() -> list[Mutant]:
    """The bugs of `bench/simulator_mutants.toml`."""
    return [Mutant(**entry) for entry in tomllib.loads((ROOT / "bench/simulator_mutants.toml").read_text())["mutant"]]


def find_violation(mutant: Mutant) -> tuple[int, str]:
    """After how many scenarios a planted bug is noticed, and how; with none, the text is empty."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        plant(mutant, source / "mstar" / mutant.file)
        first = FIRST_SCALING_SEED if mutant.file in SCALING_ONLY_FILES else 0
        command = [sys.executable, "-P", "-m", "mstar.sim", str(first), str(first + SCENARIOS_PER_MUTANT), "inf"]
        environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return 0, "it does not start: " + done.stderr.strip().splitlines()[-1]
    summary = json.loads(done.stdout)
    return summary["scenarios"], next(iter(summary["violations"].values()), "")


def fault_simulation() -> Claim:
    """Run the scenarios, then plant every bug and count those that are noticed."""
    summary = run_in_subprocesses(range(1_000_000, 1_000_000 + SCENARIOS), JOBS)
    for first in (FIRST_SCALING_SEED, FIRST_SHARDED_SEED):
        summary.merge(run_in_subprocesses(range(first, first + SCALING_SCENARIOS), JOBS))
    for seed, violation in summary.violations.items():
        print(f"seed {seed}: {violation}\n  fix: mstar sim replay {seed} --trace shows how it came to that")
    print(
        f"{summary.scenarios} scenarios, {summary.events} events, {summary.seconds:.0f} s; requests: {summary.statuses}"
    )
    begun = time.monotonic()
    mutants = load_mutants()
    killed = 0
    with ThreadPoolExecutor(JOBS) as pool:
        for mutant, (scenarios, how) in zip(mutants, pool.map(find_violation, mutants), strict=True):
            killed += bool(how)
            verdict = f"after {scenarios:4}" if how else "SURVIVED  "
            print(f"{verdict}  {mutant.file}: {mutant.what}  [{how[:60]}]", flush=True)
    value = killed / len(mutants)
    more = {
        "scenarios": summary.scenarios,
        "events": summary.events,
        "violations": len(summary.violations),
        "seconds": round(summary.seconds, 1),
        "planted": len(mutants),
        "planted_seconds": round(time.monotonic() - begun, 1),
    }
    text = "the simulator notices at least 9 of 10 bugs planted in the cores, and nothing else is wrong with them"
    holds = value >= TARGET and not summary.violations and summary.scenarios == SCENARIOS + SCALING_SCENARIOS
    return Claim(text, round(value, 3), TARGET, holds, more)
