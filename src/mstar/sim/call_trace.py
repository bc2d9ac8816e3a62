"""A book of costs: what the calls of a model gave and took, written down once, so that the model can be rehearsed.

A call is known again by what matters of its arguments and by all that went into its states. A book is not kept: it
holds for one machine, and as long as nothing else runs there.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from math import inf
from operator import mul
from statistics import fmean
from typing import Any

from mstar.config import RuntimeConfig
from mstar.engine.chunking import split_budget
from mstar.engine.engine import MIN_CHUNK_POSITIONS
from mstar.engine.engine import Engine as RealEngine
from mstar.engine.jobs import UNFINISHED, Job, JobDone, Result
from mstar.errors import MstarError
from mstar.frontend.actor import digest
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.plan.tables import BatchKey
from mstar.sim.capacity_sim import HOP_S, Arrival, CapacitySimulation, ClientResult
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.model import Model
from mstar.wire.slo import Slo
from mstar.worker.commands import (
    Batch,
    BatchFinished,
    Command,
    CreateState,
    Export,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadState,
    StateRef,
)
from mstar.worker.engine_thread import EngineThread, Report
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.policy import SchedulingPolicy

CallKeyFunction = Callable[[str, Mapping[str, Any]], Hashable | None]
"""What decides what a call gives and takes, of its op ("component.op") and its arguments without states. None if it is
too various to be written down: then it is run for real, so it has to be cheap, and takes what the op usually takes."""
CallKey = tuple[BatchKey, Hashable | None, tuple[int, ...]]
"""An op, what matters of its arguments, and what went into its states."""
TimedBatch = tuple[list[CallKey], float]
"""A batch, and how many seconds it took."""
TIMING_REPEATS = 3
"""So often each call is timed."""
BATCH_SIZES = (2, 4, 8, 16)
"""So many requests at once show what it gains that calls share a batch."""
MODEL_NAME = "model"


class NotRecorded(MstarError):
    """A rehearsal has come to a call that is not in its book, or a book could not be written."""


def digest_all_arguments(op: str, arguments: Mapping[str, Any]) -> Hashable:  # noqa: ARG001 - as every `Matters`
    """All arguments matter."""
    return digest(dict(arguments))


@dataclass(slots=True)
class CallTrace:
    """What the calls of one model give and take."""

    ops: Mapping[BatchKey, tuple[Component, Op]]
    key_function: CallKeyFunction
    outputs: dict[CallKey, tuple[Any, ...]] = field(default_factory=dict[CallKey, tuple[Any, ...]])
    call_seconds: Mapping[CallKey, float] = field(default_factory=dict[CallKey, float])
    """Of each call by itself."""
    mean_seconds_by_op: Mapping[BatchKey, float] = field(default_factory=dict[BatchKey, float])
    """Of any call of an op by itself."""
    batch_scaling: CostModel = field(default_factory=CostModel)
    """How many times as long as a single call a batch takes, by its op and how many share it."""

    def replay_call(self, call: CallKey, job: Job) -> JobDone:
        """What a call gives."""
        key, what, _ = call
        if what is None:
            component, op = self.ops[key]
            return JobDone(op.run(component, {name: [value] for name, value in job.arguments.items()}, 1)[0])
        return JobDone(self.outputs[call])

    def batch_seconds(self, calls: Sequence[CallKey], fractions: Iterable[float] = repeat(1.0)) -> float:
        """How long a batch takes in which so much of each call is run."""
        key, count = calls[0][0], len(calls)
        total = sum(map(mul, map(self._single_call_seconds, calls), fractions))
        return total * (self.batch_scaling.predict_s((str(key), 0), count) or count) / count

    def _single_call_seconds(self, call: CallKey) -> float:
        key, what, _ = call
        if what is None:
            return self.mean_seconds_by_op[key]
        if call not in self.call_seconds:
            fix = "record an ask that makes this call, or have `matters` leave out what differs"
            raise NotRecorded(f"{key} was not recorded with {what!r:.200}\n  fix: {fix}")
        return self.call_seconds[call]

    def fit_times(self, single: Sequence[TimedBatch], shared: Sequence[TimedBatch]) -> None:
        """Take down how long batches took: those of one request at a time, and those of crowds."""
        by_call, by_key = defaultdict[CallKey, list[float]](list), defaultdict[BatchKey, list[float]](list)
        for calls, seconds in single:
            for call in calls:
                by_call[call].append(seconds / len(calls))
                by_key[call[0]].append(seconds / len(calls))
        self.call_seconds = {call: fmean(found) for call, found in by_call.items()}
        self.mean_seconds_by_op = {key: fmean(found) for key, found in by_key.items()}
        times = defaultdict[tuple[BatchKey, int], list[tuple[float, float]]](list)
        for calls, seconds in shared:
            if len(calls) > 1 and self.ops[calls[0][0]][1].batch is not alone:
                times[calls[0][0], len(calls)].append((seconds, self.batch_seconds(calls)))
        for (key, count), found in times.items():
            together, apart = map(sum, zip(*found, strict=True))
            self.batch_scaling.learn((str(key), 0), 1, 1.0)
            self.batch_scaling.learn((str(key), 0), count, count * together / apart)


class TraceEngine:
    """The engine of one worker that gives what is in books.

    Of a state it has a number that stands for all that went into it. Of calls in pieces it runs as much at a time as a
    real engine would.
    """

    def __init__(self, traces: Mapping[str, CallTrace], token_budget: int | None = None) -> None:
        self.states: dict[int, int] = {}
        self._traces = traces
        self._token_budget = token_budget

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command."""
        match command:
            case Batch():
                return self._execute_batch(command)
            case CreateState():
                self._store_state(command.state, hash((command.component, command.kind)))
            case Fork():
                self._store_state(command.copy, self.states[command.state])
            case LoadState():
                self._store_state(command.state, command.exported.data)
            case Export():
                return ExportFinished(command.ticket, ExportedState("", "", self.states[command.state]))
            case Free():
                for number in command.states:
                    del self.states[number]
        return None

    def run_batch(self, batch: Batch, trace: CallTrace, calls: list[CallKey]) -> BatchFinished:
        """Run a batch: look it up."""
        jobs, op, whole = batch.jobs, trace.ops[batch.key][1], trace.batch_seconds(calls)
        if op.chunked:
            positions = sum(op.length(job.arguments) for job in jobs)
            budget = self._token_budget or positions
            able = (
                positions
                if whole <= batch.time_limit_s
                else max(MIN_CHUNK_POSITIONS, int(positions * batch.time_limit_s / whole))
            )
            split_budget(op, jobs, min(budget, able))
        results: list[Result] = []
        for call, job in zip(calls, jobs, strict=True):
            job.done = job.end
            results.append(trace.replay_call(call, job) if job.end == job.length else UNFINISHED)
        parts = [job.chunk_length / job.length if job.length else 1.0 for job in jobs]
        return BatchFinished(batch.number, results, trace.batch_seconds(calls, parts))

    def _store_state(self, number: int, past: int) -> None:
        assert number not in self.states, f"state {number} is made twice"
        self.states[number] = past

    def _execute_batch(self, batch: Batch) -> BatchFinished:
        book, key = self._traces[batch.model], batch.key
        calls = [self._call_key(key, job, book.key_function) for job in batch.jobs]
        ran = self.run_batch(batch, book, calls)
        extended = [name for name, is_extended in book.ops[key][1].states.items() if is_extended]
        for call, job, result in zip(calls, batch.jobs, ran.results, strict=True):
            for name in extended if isinstance(result, JobDone) else ():
                if isinstance(ref := job.arguments.get(name), StateRef):
                    self.states[ref.number] = hash((call, name))
        return ran

    def _call_key(self, key: BatchKey, job: Job, matters: CallKeyFunction) -> CallKey:
        plain, pasts = dict[str, Any](), list[int]()
        for name, value in job.arguments.items():
            if isinstance(value, StateRef):
                pasts.append(self.states[value.number])
            else:
                plain[name] = value
        what = matters(f"{key.component}.{key.op}", plain)
        if what is None and pasts:
            fix = "say what matters of its calls"
            raise NotRecorded(f"{key} uses a state, so it cannot be run for real in a rehearsal\n  fix: {fix}")
        return key, what, tuple(pasts)


def simulate(
    deployed: Mapping[str, PlannedModel],
    traces: Mapping[str, CallTrace],
    arrivals: Iterable[Arrival],
    *,
    options: RuntimeConfig | None = None,
    order: SchedulingPolicy | None = None,
    hop_s: float = HOP_S,
) -> list[ClientResult]:
    """What clients would get if these requests came to a deployment of these models."""
    options = options or RuntimeConfig()
    engine = partial(TraceEngine, traces, options.max_batched_tokens)
    return CapacitySimulation(deployed, engine, options=options, order=order, hop_s=hop_s).run(arrivals)


# ---------------------------------------------------------------- writing it
@dataclass(frozen=True, slots=True)
class _ImmediateArrival:
    """One who comes at once."""

    request: Any
    at: float = 0.0
    model: str = MODEL_NAME
    slo: Slo = field(default_factory=Slo)


class RecordingEngine(TraceEngine):
    """Runs everything for real, and writes down what it gave and how long it took."""

    def __init__(self, model: Model, trace: CallTrace) -> None:
        super().__init__({MODEL_NAME: trace})
        self.timed_batches: list[TimedBatch] = []
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.engine_thread = EngineThread({MODEL_NAME: model}, RealEngine(), self._reports.put, threading.Lock())

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command, with the real states too."""
        if not isinstance(command, Batch):
            self.engine_thread.submit([command], may_run_inline=False)
        return super().execute(command)

    def run_batch(self, batch: Batch, trace: CallTrace, calls: list[CallKey]) -> BatchFinished:
        """Run a batch. What a call gave the first time it gives again: rounding must not lead elsewhere."""
        self.engine_thread.submit([replace(batch, time_limit_s=inf)], may_run_inline=False)
        ran = self._reports.get()
        assert isinstance(ran, BatchFinished)
        self.timed_batches.append((calls, ran.seconds))
        for call, result in zip(calls, ran.results, strict=True):
            if isinstance(result, JobDone) and call[1] is not None:
                result.values = trace.outputs.setdefault(call, result.values)
        return ran


def record_trace(model: Model, asks: Sequence[Any], key_function: CallKeyFunction = digest_all_arguments) -> CallTrace:
    """Serve asks for real, one by one and, if calls can share batches, in crowds; what their calls gave and took."""
    components = model.components()
    for component in components.values():
        component.prepare()
    deployed = {MODEL_NAME: PlannedModel(model, plan(model.graphs()))}
    keys = deployed[MODEL_NAME].plans.keys
    book = CallTrace(
        {key: (components[key.component], components[key.component].ops()[key.op]) for key in keys}, key_function
    )

    def serve(asks: Iterable[Any]) -> list[TimedBatch]:
        recorder = RecordingEngine(model, book)
        recorder.engine_thread.start()
        try:
            receipts = CapacitySimulation(deployed, lambda: recorder).run(map(_ImmediateArrival, asks))
        finally:
            recorder.engine_thread.stop()
        if failed := [receipt.status for receipt in receipts if receipt.status != "ok"]:
            fix = "record asks that end well"
            raise NotRecorded(f"{len(failed)} of {len(receipts)} asks ended {failed[0]}\n  fix: {fix}")
        return recorder.timed_batches

    for ask in asks:
        serve([ask])  # the first time of everything takes longer
    single = [batch for _ in range(TIMING_REPEATS) for ask in asks for batch in serve([ask])]
    shared = list[TimedBatch]()
    if any(op.batch is not alone for _, op in book.ops.values()):
        shared = [batch for crowd in BATCH_SIZES for batch in serve([asks[i % len(asks)] for i in range(crowd)])]
    book.fit_times(single, shared)
    return book
