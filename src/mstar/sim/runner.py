"""Runs scenarios: one, or ranges of seeds in several processes. A process stops at its first violation."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from mstar.errors import MstarError
from mstar.sim.history import Violation
from mstar.sim.scenario_generator import make_scenario
from mstar.sim.simulation import Simulation

GC_EVERY_SCENARIOS = 100
"""Number of scenarios between garbage collections. None happens within a scenario, to keep runs deterministic."""


@dataclass
class Summary:
    """Summary of many scenarios."""

    scenarios: int = 0
    events: int = 0
    seconds: float = 0.0
    """Duration of the slowest process."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Number of requests by final status."""
    violations: dict[int, str] = field(default_factory=dict[int, str])
    """Violations by seed."""

    def merge(self, other: Summary) -> None:
        """Add the summary of another process."""
        self.scenarios += other.scenarios
        self.events += other.events
        self.seconds = max(self.seconds, other.seconds)
        self.statuses.update(other.statuses)
        self.violations |= other.violations

    def to_json(self) -> str:
        """Encode as one line."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, line: str) -> Summary:
        """Decode what `to_json` returned."""
        fields = json.loads(line)
        violations = {int(seed): text for seed, text in fields.pop("violations").items()}
        return cls(statuses=Counter(fields.pop("statuses")), violations=violations, **fields)


def run_scenario(seed: int, trace: list[str] | None = None) -> tuple[Simulation, str]:
    """Run the scenario of a seed; return the simulation at its end and the violation, if any."""
    simulation = Simulation(make_scenario(seed), trace)
    try:
        simulation.run()
    except Violation as violation:
        return simulation, str(violation)
    except Exception as error:  # noqa: BLE001 - an exception in a core is a violation
        return simulation, f"{type(error).__name__} was raised: {error}"
    return simulation, ""


def run_in_process(seeds: range, minutes: float = inf) -> Summary:
    """Run scenarios in this process until a violation or the time limit."""
    summary = Summary()
    started_at = time.monotonic()
    with _manual_gc():
        for seed in seeds:
            simulation, violation = run_scenario(seed)
            summary.scenarios += 1
            summary.events += simulation.events
            views = simulation.history.requests.values()
            summary.statuses.update(view.status or ("left" if view.has_disconnected else "open") for view in views)
            if violation:
                summary.violations[seed] = violation
                break
            if summary.scenarios % GC_EVERY_SCENARIOS == 0:
                gc.collect()
                if time.monotonic() - started_at > 60 * minutes:
                    break
    summary.seconds = time.monotonic() - started_at
    return summary


def run_in_subprocesses(seeds: range, jobs: int, minutes: float = inf) -> Summary:
    """Run scenarios in `jobs` subprocesses."""
    size = -(-len(seeds) // jobs)
    parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    summary = Summary()
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(lambda part: _run_subprocess(part, minutes), parts):
            summary.merge(part)
    return summary


def _run_subprocess(seeds: range, minutes: float) -> Summary:
    command = [sys.executable, "-P", "-m", "mstar.sim", str(seeds.start), str(seeds.stop), str(minutes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MstarError(
            f"a simulator exited with {done.returncode}: {done.stderr[-2000:]}\n  fix: see the error above"
        )
    return Summary.from_json(done.stdout)


@contextmanager
def _manual_gc() -> Iterator[None]:
    """Disable automatic garbage collection, and exclude existing objects from manual collections."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
