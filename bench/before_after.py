"""Is the engine as fast as at another commit? `python -m bench.before_after COMMIT` measures both in one run.

Two processes, one with the sources of the other commit, each hold the same network. They decode in turns, so that a
change of the machine's mood meets both. The value is the median of the pairs.

Workload: the decoder of `bench.engine`, of the shape of SmolLM2-135M in bf16 with random weights, the smallest network
that we serve, so that the share of what surrounds it is the largest; 1, 8 and 32 requests with prompts of 64 tokens,
greedy and sampled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.claims import Claim, Row, paired_ratio, print_table

ROOT = Path(__file__).parents[1]
TARGET = 0.98
ROUNDS, STEPS, PROMPT = 8, 12, 64
CASES = [(rows, kind) for kind in ("greedy", "sampled") for rows in (1, 8, 32)]
_CHILD = f"""
import sys, time, torch
from bench.engine import EngineLoop, make_network
from mstar.engine.jobs import Job
from mstar.requests import Sampling
torch.manual_seed(0)
served = EngineLoop(make_network(), pages=2048)
print("ready", flush=True)
for line in sys.stdin:
    rows, kind = line.split()
    chosen = dict(temperature=0.8, top_p=0.9, top_k=50) if kind == "sampled" else {{}}
    params = [Sampling(**chosen, seed=row) for row in range(int(rows))]
    caches = [served.request() for _ in params]
    tokens = [torch.arange(1 + row, {PROMPT} + 1 + row) for row in range(int(rows))]
    for step in range({STEPS} + 3):
        if step == 3:
            begun = time.perf_counter()
        jobs = [Job(dict(tokens=t, kv=c, sampling=p)) for t, c, p in zip(tokens, caches, params)]
        tokens = served.run_jobs(jobs)
    print((time.perf_counter() - begun) / {STEPS} * 1000, flush=True)
    del caches, jobs
"""


class Engine:
    """An engine in a process with the sources in a folder."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        self._process.communicate()

    def step_ms(self, rows: int, kind: str) -> float:
        """Milliseconds of a decode step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows} {kind}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("an engine ended\n  fix: read its error above; the commit must have bench/engine.py")
        return line


def before_after(commit: str) -> Claim:
    """Speed of a decode step of these sources relative to that of a commit."""
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(other), commit], cwd=ROOT, check=True)
        try:
            with Engine(other) as before, Engine(ROOT) as after:
                for case in CASES:  # the first steps warm
                    before.step_ms(*case)
                    after.step_ms(*case)
                spent = {case: (list[float](), list[float]()) for case in CASES}
                for round_ in range(ROUNDS):
                    for case, (old, new) in spent.items():
                        order = [(before, old), (after, new)]
                        for engine, values in order[:: 1 if round_ % 2 else -1]:
                            values.append(engine.step_ms(*case))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    names = {case: f"{case[0]} {case[1]}" for case in CASES}
    print_table(
        [
            Row(f"{names[case]}, {when}", "ms", values)
            for case, both in spent.items()
            for when, values in zip(("before", "after"), both, strict=True)
        ]
    )
    ratios = {names[case]: round(paired_ratio(old, new), 3) for case, (old, new) in spent.items()}
    claim = f"a decode step is at least {TARGET} times as fast as at {commit}, for any number of requests"
    worst = min(ratios.values())
    return Claim(claim, worst, TARGET, is_met=worst >= TARGET, details=ratios)


if __name__ == "__main__":
    print(before_after(sys.argv[1]))
