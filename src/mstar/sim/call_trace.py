"""Call traces: recorded outputs and latencies of a model's op calls, replayed by the capacity simulation.

A call is identified by a key of its arguments and by the history of its states. A trace is not stored: it is valid for
one machine without other load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import mul
from statistics import fmean
from typing import Any

from mstar.config import RuntimeConfig
from mstar.engine.jobs import UNFINISHED, Job, JobDone, Result
from mstar.errors import MstarError
from mstar.frontend.actor import digest
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.plan.tables import BatchKey
from mstar.sim.capacity_sim import HOP_S, Arrival, CapacitySimulation, ClientResult
from mstar.sim.virtual_engine import RealEngineMirror, VirtualEngine, split_chunks
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.model import Model
from mstar.wire.slo import Slo
from mstar.worker.commands import Batch, BatchFinished, Command, ExportFinished, StateRef
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.policy import SchedulingPolicy

CallKeyFunction = Callable[[str, Mapping[str, Any]], Hashable | None]
"""Maps an op ("component.op") and its arguments without states to a key that determines output and latency. None if
there are too many different calls to record: then the call is executed, so it must be cheap, and takes the mean time of
the op."""
CallKey = tuple[BatchKey, Hashable | None, tuple[int, ...]]
"""The op, the key of its arguments, and the history of its states."""
TimedBatch = tuple[list[CallKey], float]
"""The calls of a batch, and its duration in seconds."""
TIMING_REPEATS = 3
"""Number of times each call is timed."""
BATCH_SIZES = (2, 4, 8, 16)
"""Numbers of concurrent requests with which the speed-up by batching is measured."""
MODEL_NAME = "model"


class NotRecorded(MstarError):
    """A simulation needs a call that is not in its trace, or a trace could not be recorded."""


def digest_all_arguments(op: str, arguments: Mapping[str, Any]) -> Hashable:  # noqa: ARG001 - as every `CallKeyFunction`
    """The default key: a digest of all arguments."""
    return digest(dict(arguments))


@dataclass(slots=True)
class CallTrace:
    """Recorded outputs and latencies of the calls of one model."""

    ops: Mapping[BatchKey, tuple[Component, Op]]
    key_function: CallKeyFunction
    outputs: dict[CallKey, tuple[Any, ...]] = field(default_factory=dict[CallKey, tuple[Any, ...]])
    call_seconds: Mapping[CallKey, float] = field(default_factory=dict[CallKey, float])
    """Latency of each call in a batch of one."""
    mean_seconds_by_op: Mapping[BatchKey, float] = field(default_factory=dict[BatchKey, float])
    """Mean latency of an op in a batch of one."""
    batch_scaling: CostModel = field(default_factory=CostModel)
    """Latency of a batch relative to a single call, by op and batch size."""

    def replay_call(self, call: CallKey, job: Job) -> JobDone:
        """Return the recorded output of a call, or execute it if it has no key."""
        key, argument_key, _ = call
        if argument_key is None:
            component, op = self.ops[key]
            return JobDone(op.run(component, {name: [value] for name, value in job.arguments.items()}, 1)[0])
        return JobDone(self.outputs[call])

    def batch_seconds(self, calls: Sequence[CallKey], fractions: Iterable[float] = repeat(1.0)) -> float:
        """Return the latency of a batch that executes these fractions of its calls."""
        key, count = calls[0][0], len(calls)
        total = sum(map(mul, map(self._single_call_seconds, calls), fractions))
        return total * (self.batch_scaling.predict_s((str(key), 0), count) or count) / count

    def _single_call_seconds(self, call: CallKey) -> float:
        key, argument_key, _ = call
        if argument_key is None:
            return self.mean_seconds_by_op[key]
        if call not in self.call_seconds:
            fix = "record a request that makes this call, or have `key_function` ignore what differs"
            raise NotRecorded(f"{key} was not recorded with {argument_key!r:.200}\n  fix: {fix}")
        return self.call_seconds[call]

    def fit_times(self, single: Sequence[TimedBatch], shared: Sequence[TimedBatch]) -> None:
        """Set the latencies from the batches of single requests (`single`) and of concurrent requests (`shared`)."""
        by_call, by_key = defaultdict[CallKey, list[float]](list), defaultdict[BatchKey, list[float]](list)
        for calls, seconds in single:
            for call in calls:
                by_call[call].append(seconds / len(calls))
                by_key[call[0]].append(seconds / len(calls))
        self.call_seconds = {call: fmean(seconds) for call, seconds in by_call.items()}
        self.mean_seconds_by_op = {key: fmean(seconds) for key, seconds in by_key.items()}
        times = defaultdict[tuple[BatchKey, int], list[tuple[float, float]]](list)
        for calls, seconds in shared:
            if len(calls) > 1 and self.ops[calls[0][0]][1].batch is not alone:
                times[calls[0][0], len(calls)].append((seconds, self.batch_seconds(calls)))
        for (key, count), pairs in times.items():
            together, apart = map(sum, zip(*pairs, strict=True))
            self.batch_scaling.learn((str(key), 0), 1, 1.0)
            self.batch_scaling.learn((str(key), 0), count, count * together / apart)


class TraceEngine(VirtualEngine[int]):
    """Engine of one worker that replays traces.

    The history of a state is a hash. Chunked calls are executed in the same chunks as by a real engine.
    """

    def __init__(self, traces: Mapping[str, CallTrace], token_budget: int | None = None) -> None:
        super().__init__()
        self._traces = traces
        self._token_budget = token_budget

    def new_history(self, component: str, kind: str) -> int:
        """History of a new state."""
        return hash((component, kind))

    def run_batch(self, batch: Batch, trace: CallTrace, calls: list[CallKey]) -> BatchFinished:
        """Look up the outputs and the latency of a batch."""
        parts = split_chunks(trace.ops[batch.key][1], batch, trace.batch_seconds(calls), self._token_budget)
        results: list[Result] = [
            trace.replay_call(call, job) if job.end == job.length else UNFINISHED
            for call, job in zip(calls, batch.jobs, strict=True)
        ]
        return BatchFinished(batch.number, results, trace.batch_seconds(calls, parts))

    def execute_batch(self, batch: Batch) -> BatchFinished:
        """Execute a batch, and extend the histories of its states."""
        trace, key = self._traces[batch.model], batch.key
        calls = [self._call_key(key, job, trace.key_function) for job in batch.jobs]
        ran = self.run_batch(batch, trace, calls)
        extended = [name for name, is_extended in trace.ops[key][1].states.items() if is_extended]
        for call, job, result in zip(calls, batch.jobs, ran.results, strict=True):
            for name in extended if isinstance(result, JobDone) else ():
                if isinstance(ref := job.arguments.get(name), StateRef):
                    self.states[ref.number] = hash((call, name))
        return ran

    def _call_key(self, key: BatchKey, job: Job, key_function: CallKeyFunction) -> CallKey:
        plain, histories = dict[str, Any](), list[int]()
        for name, value in job.arguments.items():
            if isinstance(value, StateRef):
                histories.append(self.states[value.number])
            else:
                plain[name] = value
        argument_key = key_function(f"{key.component}.{key.op}", plain)
        if argument_key is None and histories:
            fix = "have `key_function` return a key for it"
            raise NotRecorded(f"{key} uses a state, so it cannot be executed in a simulation\n  fix: {fix}")
        return key, argument_key, tuple(histories)


def simulate(
    models: Mapping[str, PlannedModel],
    traces: Mapping[str, CallTrace],
    arrivals: Iterable[Arrival],
    *,
    options: RuntimeConfig | None = None,
    order: SchedulingPolicy | None = None,
    hop_s: float = HOP_S,
) -> list[ClientResult]:
    """Simulate these requests on a deployment; return what each client receives and when."""
    options = options or RuntimeConfig()
    engine = partial(TraceEngine, traces, options.max_batched_tokens)
    return CapacitySimulation(models, engine, options=options, order=order, hop_s=hop_s).run(arrivals)


# ---------------------------------------------------------------- recording
@dataclass(frozen=True, slots=True)
class _ImmediateArrival:
    """A request at time 0."""

    request: Any
    at: float = 0.0
    model: str = MODEL_NAME
    slo: Slo = field(default_factory=Slo)


class RecordingEngine(TraceEngine):
    """Executes everything, and records outputs and latencies."""

    def __init__(self, trace: CallTrace, real: RealEngineMirror) -> None:
        super().__init__({MODEL_NAME: trace})
        self.timed_batches: list[TimedBatch] = []
        self._real = real

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command on the real engine too."""
        if not isinstance(command, Batch):
            self._real.execute(command)
        return super().execute(command)

    def run_batch(self, batch: Batch, trace: CallTrace, calls: list[CallKey]) -> BatchFinished:
        """Execute a batch. Each call returns its first recorded output, so that rounding changes no control flow."""
        ran = self._real.run(batch)
        self.timed_batches.append((calls, ran.seconds))
        for call, result in zip(calls, ran.results, strict=True):
            if isinstance(result, JobDone) and call[1] is not None:
                result.values = trace.outputs.setdefault(call, result.values)
        return ran


def record_trace(
    model: Model, requests: Sequence[Any], key_function: CallKeyFunction = digest_all_arguments
) -> CallTrace:
    """Serve requests one by one and, if calls can be batched, concurrently; return the trace of their calls."""
    components = model.components()
    for component in components.values():
        component.prepare()
    planned = {MODEL_NAME: PlannedModel(model, plan(model.graphs()))}
    keys = planned[MODEL_NAME].plans.keys
    trace = CallTrace(
        {key: (components[key.component], components[key.component].ops()[key.op]) for key in keys}, key_function
    )

    def serve(requests: Iterable[Any]) -> list[TimedBatch]:
        with RealEngineMirror(MODEL_NAME, model) as real:
            recorder = RecordingEngine(trace, real)
            results = CapacitySimulation(planned, lambda: recorder).run(map(_ImmediateArrival, requests))
        if failed := [result.status for result in results if result.status != "ok"]:
            fix = "record requests that end with status ok"
            raise NotRecorded(f"{len(failed)} of {len(results)} requests ended with {failed[0]}\n  fix: {fix}")
        return recorder.timed_batches

    for request in requests:
        serve([request])  # warm-up
    single = [batch for _ in range(TIMING_REPEATS) for request in requests for batch in serve([request])]
    shared = list[TimedBatch]()
    if any(op.batch is not alone for _, op in trace.ops.values()):
        crowds = [[requests[i % len(requests)] for i in range(size)] for size in BATCH_SIZES]
        shared = [batch for crowd in crowds for batch in serve(crowd)]
    trace.fit_times(single, shared)
    return trace
