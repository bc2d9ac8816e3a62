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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.claims import Claim
from bench.mutants import ROOT, Mutant, plant
from bench.parts import PARTS, Parts, part_of
from mstar.sim.runner import Summary, run_in_subprocesses
from mstar.sim.scenario import (
    FIRST_AHEAD_SEED,
    FIRST_FOCUSED_SEED,
    FIRST_KILL_SEED,
    FIRST_OVERLAP_SEED,
    FIRST_PAUSE_SEED,
    FIRST_ROLLOUT_SEED,
    FIRST_SCALING_SEED,
    FIRST_SHARDED_SEED,
)

SEEDS = (
    range(1_000_000, 1_050_000),
    range(FIRST_SCALING_SEED, FIRST_SCALING_SEED + 10_000),
    range(FIRST_SHARDED_SEED, FIRST_SHARDED_SEED + 10_000),
    range(FIRST_FOCUSED_SEED, FIRST_FOCUSED_SEED + 10_000),
    range(FIRST_PAUSE_SEED, FIRST_PAUSE_SEED + 1_000),
    range(FIRST_ROLLOUT_SEED, FIRST_ROLLOUT_SEED + 1_000),
    range(FIRST_OVERLAP_SEED, FIRST_OVERLAP_SEED + 500),
    range(FIRST_AHEAD_SEED, FIRST_AHEAD_SEED + 500),
)
"""Scenarios with faults, with autoscaling, with several conductors, those that focus on one property each, those with
long pauses, those with rolling updates on a single host, also with long requests and faults, and those with pauses of
workers that are sent states ahead."""
SCENARIOS_PER_MUTANT = 2_000
"""In how many scenarios a planted bug has to be noticed."""
RUN_TIMEOUT_S = 600.0
"""Maximum duration of these scenarios. A bug that makes them endless is not noticed."""
SCALING_ONLY_FILES = (
    "conductor/liveness/failure_detector.py",
    "conductor/membership.py",
    "conductor/scaling/autoscaler.py",
    "conductor/scaling/replica_group.py",
    "conductor/scaling/rollout.py",
    "conductor/scaling/weights_versions.py",
)
"""Files whose mutants are run only with autoscaling, because some of them are not detected without."""
JOBS = 2
TARGET = 0.9


@dataclass(frozen=True)
class SimulatorMutant(Mutant):
    """A planted bug that the simulator must notice."""

    seeds: str = ""
    """"focused", "pauses", "rollouts", "kills", "overlap" or "ahead" for a bug that only scenarios with a focus, long
    pauses, successors of workers, many kills, long requests during rolling updates, or states that are sent ahead to
    workers that pause can show."""

    @property
    def first_seed(self) -> int:
        """Seed of the first scenario that is run with this bug."""
        first_seeds = {
            "focused": FIRST_FOCUSED_SEED,
            "pauses": FIRST_PAUSE_SEED,
            "rollouts": FIRST_ROLLOUT_SEED,
            "kills": FIRST_KILL_SEED,
            "overlap": FIRST_OVERLAP_SEED,
            "ahead": FIRST_AHEAD_SEED,
        }
        default = FIRST_SCALING_SEED if self.file in SCALING_ONLY_FILES else 0
        return first_seeds.get(self.seeds, default)


def load_mutants() -> list[SimulatorMutant]:
    """The bugs of `bench/simulator_mutants.toml`."""
    entries = tomllib.loads((ROOT / "bench/simulator_mutants.toml").read_text())["mutant"]
    return [SimulatorMutant(**entry) for entry in entries]


def find_violation(mutant: SimulatorMutant) -> tuple[int, str]:
    """After how many scenarios a planted bug is noticed, and how; if it is not, the text is empty."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        plant(mutant, source / "mstar" / mutant.file)
        first = mutant.first_seed
        command = [sys.executable, "-P", "-m", "mstar.sim", str(first), str(first + SCENARIOS_PER_MUTANT), "inf"]
        environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return 0, ""
    if done.returncode:
        raise ValueError(f"{mutant.file}: {mutant.what}: the simulator does not start: {done.stderr[-2000:]}")
    summary = json.loads(done.stdout)
    return summary["scenarios"], next(iter(summary["violations"].values()), "")


def fault_simulation() -> Claim:
    """Run the next fifth of the scenarios and of the planted bugs."""
    part = Parts("sim").next
    ranges = [seeds[len(seeds) * part // PARTS : len(seeds) * (part + 1) // PARTS] for seeds in SEEDS]
    return simulate(ranges, part_of(load_mutants(), part))


def simulate(seeds: Sequence[range], mutants: Sequence[SimulatorMutant], jobs: int = JOBS) -> Claim:
    """Run the scenarios, then plant every bug and count those that are noticed."""
    summary = Summary()
    for part in seeds:
        summary.merge(run_in_subprocesses(part, jobs))
    for seed, violation in summary.violations.items():
        print(f"seed {seed}: {violation}\n  fix: mstar sim replay {seed} --trace shows how it came to that")
    print(
        f"{summary.scenarios} scenarios, {summary.events} events, {summary.seconds:.0f} s; requests: {summary.statuses}"
    )
    begun = time.monotonic()
    killed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, (scenarios, how) in zip(mutants, pool.map(find_violation, mutants), strict=True):
            killed += bool(how)
            verdict = f"after {scenarios:4}" if how else "SURVIVED  "
            print(f"{verdict}  {mutant.file}: {mutant.what}  [{how[:60]}]", flush=True)
    value = killed / len(mutants)
    details = {
        "scenarios": summary.scenarios,
        "events": summary.events,
        "violations": len(summary.violations),
        "seconds": round(summary.seconds, 1),
        "planted": len(mutants),
        "planted_seconds": round(time.monotonic() - begun, 1),
    }
    text = "the simulator notices at least 9 of 10 bugs planted in the cores, and nothing else is wrong with them"
    is_complete = summary.scenarios == sum(map(len, seeds))
    return Claim(text, round(value, 3), TARGET, value >= TARGET and not summary.violations and is_complete, details)
