"""`python -m bench NAME`: run one benchmark; several names or `all`: each in its own process; `page`: write
docs/performance.md from the recorded runs; no name: list them.

Every run is recorded (bench/records.py). What is measured, and how, is in the modules that bench/registry.py names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from bench import page
from bench.claims import printed_rows
from bench.records import ROOT, Record, add_record, machine, records
from bench.registry import BENCHES

TIMEOUT_S = 1800.0
"""Maximum duration of one benchmark among several."""


def main(names: list[str]) -> int:
    """Run the benches named; 0 if every target is met."""
    if names == ["page"]:
        page.write(BENCHES)
        return 0
    chosen = list(BENCHES) if names == ["all"] else names
    if not chosen or not BENCHES.keys() >= set(chosen):
        print("python -m bench NAME..., with NAME one of:", ", ".join(BENCHES), "or all, or page")
        return 2
    return measure(*chosen) if len(chosen) == 1 else measure_in_subprocesses(chosen)


def measure(name: str) -> int:
    """Run one bench here, record the run, and print its claim as one line of JSON."""
    printed_rows.clear()
    here, begun = machine(), time.monotonic()
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    claim = BENCHES[name].load()()
    try:
        add_record(name, Record(date, time.monotonic() - begun, here, claim, printed_rows))
        page.write(BENCHES)
    except OSError as error:  # the result is printed all the same
        print(f"not recorded: {error}\n  fix: run it in a checkout that may be written", file=sys.stderr)
    print(claim)
    return 0 if claim.is_met else 1


def measure_in_subprocesses(names: Sequence[str]) -> int:
    """Run benches one after another, each in its own process: a failure does not stop the others."""
    ends: dict[str, str] = {}
    for at, name in enumerate(names):
        kept, left = records(name), [last.took_s for other in names[at:] for last in records(other)[-1:]]
        last = f"took {kept[-1].took_s:.0f} s last time" if kept else "no earlier run"
        unknown = len(names) - at - len(left)
        print(
            f"[{at + 1}/{len(names)}] {name}: {last}; from here to the end about {sum(left) / 60:.1f} min"
            + f" and {unknown} that never ran" * bool(unknown),
            flush=True,
        )
        went_wrong = run_in_subprocess(name)
        newest = records(name)[-1:]
        is_recorded = newest != kept[-1:]
        ends[name] = ("met" if newest[0].claim.is_met else "MISSED") if is_recorded else went_wrong
    print("\n".join(f"{name:20} {end}" for name, end in ends.items()))
    return 0 if set(ends.values()) == {"holds"} else 1


def run_in_subprocess(name: str) -> str:
    """Run one bench in a process of its own; how that process ended."""
    child = subprocess.Popen([sys.executable, "-m", "bench", name], cwd=ROOT, start_new_session=True)
    try:
        return f"ENDED WITHOUT A CLAIM, exit code {child.wait(TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        return f"STOPPED after {TIMEOUT_S:.0f} s"
    finally:
        if child.poll() is None:  # and the servers it started
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
