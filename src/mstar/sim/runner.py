"""Runs scenarios: one, or many of them in as many processes as there are cores.

A process stops at its first violation: what follows from a bug that is known teaches nothing.
"""

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
from mstar.sim.scenario import make_scenario
from mstar.sim.simulation import Simulation

GC_EVERY_SCENARIOS = 100
"""After how many scenarios what they left is collected. Never within one: when that happens must not matter."""


@dataclass
class Summary:
    """What came of many scenarios."""

    scenarios: int = 0
    events: int = 0
    seconds: float = 0.0
    """How long they took in all, of the longest process."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """How many requests ended how."""
    violations: dict[int, str] = field(default_factory=dict[int, str])
    """By seed."""

    def merge(self, other: Summary) -> None:
        """Take in what another process has run."""
        self.scenarios += other.scenarios
        self.events += other.events
        self.seconds = max(self.seconds, other.seconds)
        self.statuses.update(other.statuses)
        self.violations |= other.violations

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, line: str) -> Summary:
        """The reverse."""
        told = json.loads(line)
        violations = {int(seed): text for seed, text in told.pop("violations").items()}
        return cls(statuses=Counter(told.pop("statuses")), violations=violations, **told)


def run_scenario(seed: int, trace: list[str] | None = None) -> tuple[Simulation, str]:
    """Run the scenario of a seed: the world at its end, and what went wrong, if something did."""
    world = Simulation(make_scenario(seed), trace)
    try:
        world.run()
    except Violation as violation:
        return world, str(violation)
    except Exception as error:  # noqa: BLE001 - a core that raises has lost whatever it was about to do
        return world, f"{type(error).__name__} was raised: {error}"
    return world, ""


def run_in_process(seeds: range, minutes: float = inf) -> Summary:
    """Run scenarios in this process, until one goes wrong or the time is over."""
    summary = Summary()
    begun = time.monotonic()
    with _manual_gc():
        for seed in seeds:
            world, violation = run_scenario(seed)
            summary.scenarios += 1
            summary.events += world.events
            seen = world.history.requests.values()
            summary.statuses.update(one.status or ("left" if one.has_disconnected else "open") for one in seen)
            if violation:
                summary.violations[seed] = violation
                break
            if summary.scenarios % GC_EVERY_SCENARIOS == 0:
                gc.collect()
                if time.monotonic() - begun > 60 * minutes:
                    break
    summary.seconds = time.monotonic() - begun
    return summary


def run_in_subprocesses(seeds: range, jobs: int, minutes: float = inf) -> Summary:
    """Run scenarios in so many other processes."""
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
        raise MstarError(f"a simulator ended with {done.returncode}: {done.stderr[-2000:]}\n  fix: see what it says")
    return Summary.from_json(done.stdout)


@contextmanager
def _manual_gc() -> Iterator[None]:
    """Have garbage collected only when it is asked for, and only of what is made from here on."""
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
