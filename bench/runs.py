"""Runs a benchmark in this process and records it, or several of them, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.claims import Bench, Claim, printed_rows, to_flags
from bench.history import History, Load, Record
from bench.machine import (
    SAMPLES,
    OtherWork,
    other_work,
    read_cpu_times,
    read_machine,
    require_quiet,
    sample_other_work,
)
from bench.repository import ROOT, Repository

TIMEOUT_S = 3600.0
"""Maximum duration of one run among several. The longest one, `mutants`, takes about 15 minutes."""
KILL_AFTER_S = 10.0
"""Seconds that a run has to record that it was stopped."""
DIRTY = (
    "the tree is not a commit, or mstar is imported from elsewhere: the run is recorded, but does not count\n"
    "  fix: commit all changes, and set PYTHONPATH=src:. if another checkout is installed"
)
MET, MISSED, USAGE, REFUSED = range(4)
"""Exit codes."""
NO_OPTIONS: Mapping[str, Any] = {}


class Measurement:
    """The state of the tree and of the machine when a run starts; `record` adds what followed."""

    def __init__(self, bench: Bench, before: OtherWork, root: Path) -> None:
        self._series, self._before, self._repository = bench.series, before, Repository(root)
        self._commit = self._repository.commit()
        self.is_clean = self._repository.is_clean() and is_own_source(root)
        self._date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        self._load_average = round(os.getloadavg()[0], 1)
        self._times, self._begun = read_cpu_times(), time.monotonic()

    def record(self, claim: Claim | None, error: str = "") -> Record:
        """The run, which has just ended."""
        took_s, times = time.monotonic() - self._begun, read_cpu_times()
        during, before = other_work(self._times, times), self._before
        return Record(
            date=self._date,
            series=self._series,
            commit=self._commit,
            is_clean=self.is_clean and self._repository.is_clean() and self._repository.commit() == self._commit,
            machine=read_machine(),
            load=Load(
                self._load_average, before.other, before.steal, during.other, during.steal, is_busy=before.is_busy
            ),
            took_s=took_s,
            cpu_s=round(times.own - self._times.own, 1),
            error=error,
            claim=claim,
            rows=printed_rows,
        )


def measure(
    name: str, bench: Bench, *, allow_busy: bool = False, root: Path = ROOT, options: Mapping[str, Any] = NO_OPTIONS
) -> Claim:
    """Run a benchmark here and append the run to the history, whatever its end."""
    printed_rows.clear()
    needs_quiet = bench.is_speed and not allow_busy
    before = sample_other_work(SAMPLES if needs_quiet else 1)
    if needs_quiet:
        require_quiet(before)
    run = Measurement(bench, before, root)
    if not run.is_clean:
        print(DIRTY, file=sys.stderr)
    try:
        claim = bench.load()(**options)
    except BaseException as error:
        _append(name, run.record(None, type(error).__name__), root)  # a message may name folders
        raise
    _append(name, run.record(claim), root)
    return claim


def is_own_source(root: Path) -> bool:
    """Whether the package that is measured is the one of this checkout, and not another installed one."""
    package = importlib.util.find_spec("mstar")
    return bool(package and package.origin and Path(package.origin).is_relative_to(root / "src"))


def measure_in_subprocesses(
    names: Sequence[str],
    runs: int = 1,
    *,
    allow_busy: bool = False,
    root: Path = ROOT,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> dict[str, list[str]]:
    """Run benchmarks one after another, each in its own process: a failure does not stop the others."""
    history, ends = History(root), {name: list[str]() for name in names}
    plan = [(name, run) for name in names for run in range(1, runs + 1)]
    durations = {name: [record.took_s for record in history.records(name) if record.claim] for name in names}
    for at, (name, run) in enumerate(plan):
        print(f"[{at + 1}/{len(plan)}] {name}, run {run} of {runs}: {_estimate(plan[at:], durations)}", flush=True)
        known = len(history.records(name))
        end = run_in_subprocess(name, allow_busy=allow_busy, root=root, options=options)
        added = history.records(name)[known:]
        ends[name].append(_end(added[-1]) if added else end)
        durations[name] += [record.took_s for record in added if record.claim]
        print(f"[{at + 1}/{len(plan)}] {name}, run {run} of {runs}: {ends[name][-1]}", flush=True)
    return ends


def run_in_subprocess(
    name: str, *, allow_busy: bool = False, root: Path = ROOT, options: Mapping[str, Any] = NO_OPTIONS
) -> str:
    """Run one benchmark in a process of its own, and return how that process ended."""
    words = [sys.executable, "-m", "bench", name, *["--busy"] * allow_busy, *to_flags(options)]
    child = subprocess.Popen(words, cwd=root, start_new_session=True)
    try:
        code = child.wait(TIMEOUT_S)
        return "REFUSED: busy machine" if code == REFUSED else f"ENDED WITHOUT A CLAIM, exit code {code}"
    except subprocess.TimeoutExpired:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(KILL_AFTER_S)
        return f"STOPPED after {TIMEOUT_S:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and the servers it started
        child.wait()


def stop_by_exception() -> None:
    """Turn SIGTERM into an exception, so that a stopped run is recorded too."""

    def stop(_number: int, _frame: object) -> None:
        raise SystemExit("stopped by SIGTERM")

    signal.signal(signal.SIGTERM, stop)


def _append(name: str, record: Record, root: Path) -> None:
    try:
        History(root).append(name, record)
    except OSError as error:  # the result is printed all the same
        print(f"not recorded: {error}\n  fix: run it in a checkout that can be written", file=sys.stderr)


def _end(record: Record) -> str:
    if record.claim is None:
        return f"ENDED WITH {record.error}"
    return f"{'met' if record.claim.is_met else 'MISSED'}, {record.claim.value:g} (target {record.claim.target:g})"


def _estimate(left: Sequence[tuple[str, int]], durations: Mapping[str, Sequence[float]]) -> str:
    seconds = [statistics.median(durations[name]) for name, _ in left if durations[name]]
    unknown = len(left) - len(seconds)
    own = durations[left[0][0]]
    return (
        (f"about {statistics.median(own):.0f} s" if own else "no earlier run")
        + f", all that is left about {sum(seconds) / 60:.1f} min"
        + f" and {unknown} runs of unknown duration" * bool(unknown)
    )
