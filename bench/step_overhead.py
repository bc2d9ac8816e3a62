"""What following a plan costs in Python: one loop step of a request in a large batch, and starting a request.

Everything a worker does around an op is measured and nothing of the op itself: taking the ready calls, gathering their
arguments, storing their results, going round the loop, streams, windows, emissions. Times are this thread's CPU time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.claims import Claim, Row, print_table
from mstar import KV, Audio, Bool, Component, Float32, Int64, Latents, Model, Stream, Tensor, loop, op, walk, windows
from mstar.plan.compile import plan
from mstar.plan.runtime.frame import ReadyInstruction
from mstar.plan.runtime.run import PartitionRun, columns, complete

BATCH = 128
STEPS = 140
REPEATS = 25


@dataclass
class Sampling:
    """Sampling parameters of a request."""

    max_tokens: int = 1 << 40


class Lm(Component):
    """Ops that are never run here: only their calls are kept in order."""

    @op
    def prefill(self, prompt: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]: ...

    @op
    def decode(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]: ...

    @op
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]: ...

    @op
    def sound(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "S"]: ...

    @op
    def same(self, x: int) -> int: ...


class Walks(Model):
    """The loops that are measured."""

    def __init__(self) -> None:
        self.lm = Lm()

    @walk
    def smallest(self, steps: int) -> Iterator[Latents]:
        """A loop around one op."""
        for step in loop(steps=steps):
            yield Latents(self.lm.same(step))

    @walk
    def speech(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Audio]:
        """The shape of Orpheus: two ops a step, a stream, and a third op on every window of it. Ten nodes."""
        kv = self.lm.kv()
        codes = Stream("codes")
        s = loop(steps=sampling.max_tokens, token=self.lm.prefill(prompt, kv))
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token, kv)
            s.stop_when(self.lm.is_end(s.token))
        for window in windows(codes, size=28, stride=7):
            yield Audio(self.lm.sound(window), rate=24_000)


class NoStates:
    """Makes states that hold nothing."""

    def new_state(self, component: str, kind: str) -> Any:
        """An empty state."""
        return (component, kind)

    def fork(self, state: Any) -> Any:
        """The same empty state."""
        return state


class RequestBatch:
    """A batch of requests in the middle of one walk."""

    def __init__(self, name: str, inputs: list[Any], step_op: str) -> None:
        plans = plan(Walks().graphs())
        self.ops = [key.op for key in plans.keys]
        self.part = plans.walks[name].programs[0]
        self.inputs, self.step_op = inputs, step_op
        self.ready: list[ReadyInstruction] = []
        self.runs = [PartitionRun(self.part, NoStates(), self.ready) for _ in range(BATCH)]
        for run in self.runs:
            run.start(inputs)
        self.advance(50)

    def advance(self, steps: int) -> float:
        """Run a number of steps of every request; seconds of bookkeeping."""
        spent = 0.0
        while steps:
            calls = self.ready[:]
            self.ready.clear()
            batches: defaultdict[int, list[ReadyInstruction]] = defaultdict(list)
            for call in calls:
                batches[call[1].detail.key].append(call)
            for key, batch in batches.items():
                results = [(False,) if self.ops[key] == "is_end" else (7,)] * len(batch)
                begun = time.thread_time()
                columns(batch)
                complete(batch, results)
                spent += time.thread_time() - begun
                steps -= self.ops[key] == self.step_op
            for run in self.runs:
                run.emissions.clear()
        return spent

    def start_one(self) -> float:
        """Seconds to begin one more request, up to its first ready call."""
        ready: list[ReadyInstruction] = []
        begun = time.thread_time()
        PartitionRun(self.part, NoStates(), ready).start(self.inputs)
        return time.thread_time() - begun


def measure() -> tuple[Row, Row, Row]:
    """Both loops and the start, interleaved and repeated."""
    small = RequestBatch("smallest", [1 << 40], "same")
    speech = RequestBatch("speech", [None, Sampling()], "is_end")
    results: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(REPEATS):
        results["small"].append(small.advance(STEPS) / STEPS / BATCH * 1e6)
        results["speech"].append(speech.advance(STEPS) / STEPS / BATCH * 1e6)
        results["start"].append(sum(speech.start_one() for _ in range(200)) / 200 * 1e6)
    return (
        Row("loop step, one op", "µs a request", results["small"]),
        Row("loop step, speech: two ops, a stream, windows", "µs a request", results["speech"]),
        Row("starting a request, speech: ten nodes", "µs a request", results["start"]),
    )


def loop_step() -> Claim:
    """Is a loop step cheap?"""
    rows = measure()
    print_table(rows)
    value = round(rows[1].median, 2)
    text = f"one loop step of a speech request inside a batch of {BATCH} costs at most 3 µs of Python"
    return Claim(text, value, 3.0, value <= 3.0, {"unit": "µs", "best": round(min(rows[1].values), 2)})


def request_start() -> Claim:
    """Is starting a request cheap?"""
    rows = measure()
    print_table(rows)
    value = round(rows[2].median, 1)
    text = "starting a request on a ten-node walk costs at most 50 µs"
    return Claim(text, value, 50.0, value <= 50.0, {"unit": "µs", "best": round(min(rows[2].values), 1)})
