"""`mstar sim`: look for bugs in the runtime's own cores, under faults, in virtual time. It serves no model."""

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
    text = "run the runtime's cores in virtual time, under faults drawn from seeds"
    sim = commands.add_parser("sim", help=text, description=text)
    verbs = sim.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    run = command("run", "run many scenarios; say which seed went wrong, if one did", _run)
    run.add_argument("--scenarios", type=int, default=1000, help="how many (1000)")
    run.add_argument("--seed", type=int, default=0, help="the seed of the first; those of the others follow (0)")
    run.add_argument("--jobs", type=int, default=1, help="in how many processes (1)")
    run.add_argument("--minutes", type=float, default=inf, help="for how long at most")
    replay = command("replay", "run the scenario of one seed again", _replay)
    replay.add_argument("seed", type=int)
    replay.add_argument("--trace", action="store_true", help="say what happens, in virtual time")


def _run(options: argparse.Namespace) -> None:
    from mstar.sim.runner import run_in_process, run_in_subprocesses  # most commands do not need the cores

    seeds = range(options.seed, options.seed + options.scenarios)
    many = options.jobs > 1
    summary = (
        run_in_subprocesses(seeds, options.jobs, options.minutes) if many else run_in_process(seeds, options.minutes)
    )
    print(_format_summary(summary))
    if summary.violations:
        seed, violation = next(iter(summary.violations.items()))
        raise MstarError(f"seed {seed}: {violation}\n  fix: mstar sim replay {seed} --trace shows how it came to that")


def _format_summary(summary: Summary) -> str:
    speed = summary.scenarios / max(summary.seconds, 1e-9)
    ends = ", ".join(f"{count} {status}" for status, count in summary.statuses.most_common())
    ran = f"{summary.scenarios} scenarios with {summary.events} events in {summary.seconds:.1f} s, {speed:.0f} a second"
    return f"{ran}\nrequests: {ends}"


def _replay(options: argparse.Namespace) -> None:
    from mstar.sim.runner import run_scenario

    trace: list[str] | None = [] if options.trace else None
    world, violation = run_scenario(options.seed, trace)
    for line in trace or ():
        print(line)
    kinds = ", ".join(sorted(world.scenario.kinds)) or "none"
    print(f"seed {options.seed}: {world.events} events in {world.now:.2f} virtual seconds, trouble: {kinds}")
    print(f"trace hash {world.hash & 0xFFFFFFFFFFFFFFFF:016x}")
    if violation:
        raise MstarError(
            f"seed {options.seed}: {violation}\n  fix: mend what the trace shows, and keep the seed as a test"
        )
