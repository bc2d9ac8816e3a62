"""`python -m bench NAME`: run one benchmark; several names, `all` or `--runs`: each run in its own process; `page`:
write docs/performance.md from the recorded runs; no name: list them. Some benchmarks have flags of their own.

Every run is recorded (bench/history.py). What is measured, and how, is in the modules that bench/registry.py names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from bench import page
from bench.machine import MachineBusy
from bench.registry import BENCHES
from bench.repository import ROOT
from bench.runs import MET, MISSED, REFUSED, USAGE, measure, measure_in_subprocesses, stop_by_exception


def main(words: list[str]) -> int:
    """Run the benchmarks named; 0 if every target is met."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks and record the runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark, all, or page")
    parser.add_argument("--runs", type=int, default=1, help="runs of each benchmark, in processes of their own")
    parser.add_argument("--busy", action="store_true", help="measure a speed on a busy machine too; does not count")
    for flag, uses in groupby(sorted(_options(), key=itemgetter(0)), itemgetter(0)):  # benchmarks can share a flag
        _, types, helps = zip(*uses, strict=True)
        parser.add_argument(f"--{flag}", type=types[0], default=argparse.SUPPRESS, help=" ".join(helps))
    given = parser.parse_args(words)
    if given.names == ["page"]:
        page.write(BENCHES, ROOT)
        return MET
    chosen = list(BENCHES) if given.names == ["all"] else given.names
    if not chosen or not BENCHES.keys() >= set(chosen):
        print("python -m bench NAME..., with NAME one of:", ", ".join(BENCHES), "or all, or page")
        return USAGE
    options = {name: value for name, value in vars(given).items() if name not in ("names", "runs", "busy")}
    if unknown := unknown_options(chosen, options):
        print(f"{unknown}\n  fix: leave it out, or name only benchmarks that have it")
        return USAGE
    if len(chosen) == 1 and given.runs == 1:
        return run_one(chosen[0], allow_busy=given.busy, options=options)
    ends = measure_in_subprocesses(chosen, given.runs, allow_busy=given.busy, root=ROOT, options=options)
    met = {name: sum(end.startswith("met") for end in own) for name, own in ends.items()}
    print("\n".join(f"{name:20} met {met[name]} of {len(own)}" for name, own in ends.items()))
    return MET if all(met[name] == len(own) for name, own in ends.items()) else MISSED


def _options() -> Iterator[tuple[str, Callable[[str], Any], str]]:
    """Name, type and help of the options of all benchmarks."""
    for name, bench in BENCHES.items():
        for option in bench.options:
            yield option.name, option.type, f"{name}: {option.help}"


def unknown_options(names: Sequence[str], options: Mapping[str, Any]) -> str:
    """The options that a benchmark does not have, in a sentence; empty if each has all of them."""
    for name in names:
        if missing := options.keys() - {option.name for option in BENCHES[name].options}:
            return f"{name} has no option {', '.join(f'--{option}' for option in sorted(missing))}"
    return ""


def run_one(name: str, *, allow_busy: bool, options: Mapping[str, Any]) -> int:
    """Run one benchmark here, update the page, and print its claim as one line of JSON."""
    stop_by_exception()
    try:
        claim = measure(name, BENCHES[name], allow_busy=allow_busy, root=ROOT, options=options)
    except MachineBusy as busy:
        print(f"{name} was not started: {busy}", file=sys.stderr)
        return REFUSED
    try:
        page.write(BENCHES, ROOT)
    except OSError as error:  # the result is printed all the same
        print(f"page not written: {error}\n  fix: run it in a checkout that can be written", file=sys.stderr)
    print(claim)
    return MET if claim.is_met else MISSED


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
