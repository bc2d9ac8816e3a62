"""`mstar sim`: deterministic simulation of the runtime with fault injection, in virtual time. Serves no model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from mstar.errors import MstarError

if TYPE_CHECKING:
    from mstar.sim.runner import Summary


def add_sim(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Test the runtime by deterministic simulation with seeded faults."
    sim = commands.add_parser("sim", help=text, description=text)
    verbs = sim.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    run = command("run", "Run many scenarios and report the seed of the first violation.", _run)
    run.add_argument("--scenarios", type=int, default=1000, help="Number of scenarios (default 1000).")
    run.add_argument(
        "--seed", type=int, default=0, help="Seed of the first scenario; the others count up from it (default 0)."
    )
    run.add_argument("--jobs", type=int, default=1, help="Number of processes (default 1).")
    run.add_argument("--minutes", type=float, default=inf, help="Maximum duration in minutes (default: unlimited).")
    replay = command("replay", "Run the scenario of one seed again.", _replay)
    replay.add_argument("seed", type=int)
    replay.add_argument("--trace", action="store_true", help="Print every event with its virtual time.")


def _run(options: argparse.Namespace) -> None:
    from mstar.sim.runner import run_in_process, run_in_subprocesses  # imported here: other commands do not need it

    seeds = range(options.seed, options.seed + options.scenarios)
    if options.jobs > 1:
        summary = run_in_subprocesses(seeds, options.jobs, options.minutes)
    else:
        summary = run_in_process(seeds, options.minutes)
    print(_format_summary(summary))
    if summary.violations:
        seed, violation = next(iter(summary.violations.items()))
        raise MstarError(f"seed {seed}: {violation}\n  fix: run `mstar sim replay {seed} --trace` to see the events")


def _format_summary(summary: Summary) -> str:
    rate = summary.scenarios / max(summary.seconds, 1e-9)
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.most_common())
    totals = (
        f"{summary.scenarios} scenarios, {summary.events} events in {summary.seconds:.1f} s ({rate:.0f} scenarios/s)"
    )
    return f"{totals}\nrequests: {statuses}"


def _replay(options: argparse.Namespace) -> None:
    from mstar.sim.runner import run_scenario

    trace: list[str] | None = [] if options.trace else None
    simulation, violation = run_scenario(options.seed, trace)
    for line in trace or ():
        print(line)
    kinds = ", ".join(sorted(simulation.scenario.kinds)) or "none"
    print(f"seed {options.seed}: {simulation.events} events in {simulation.now:.2f} virtual seconds, faults: {kinds}")
    print(f"trace hash {simulation.hash & 0xFFFFFFFFFFFFFFFF:016x}")
    if violation:
        raise MstarError(
            f"seed {options.seed}: {violation}\n  fix: use --trace to find the bug; keep the seed as a regression test"
        )
