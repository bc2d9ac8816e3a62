"""Profiler: requests are served with real engines in this process, alone and together, and their calls are recorded.

Each round serves every request alone, then crowds of `CROWD_SIZES` of them, so that a change of the machine's speed
shows as a difference between rounds. Time between calls is virtual: only the engine runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from statistics import fmean
from typing import Any

from mstar.engine.jobs import JobDone
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import (
    MEASURED,
    BatchCost,
    DeviceCosts,
    ModelProfile,
    OpCosts,
    RecordedCall,
    RecordedOutput,
    RecordedRequest,
    fingerprint_walks,
    new_history,
)
from mstar.plan.tables import BatchKey
from mstar.sim.capacity_sim import CapacitySimulation, ClientResult
from mstar.sim.profile.profile_replay import (
    NotProfiled,
    RecordedArrival,
    StateHistory,
    extend_states,
    key_of,
    ops_of,
    pack_value,
    state_histories,
)
from mstar.sim.virtual_engine import RealEngineMirror, VirtualEngine
from mstar.walk.batching import alone
from mstar.walk.component import Op
from mstar.wire.slo import Slo
from mstar.worker.commands import Batch, BatchFinished, Command, ExportFinished

MODEL_NAME = "model"
ROUNDS = 3
"""Rounds of measurement."""
CROWD_SIZES = (2, 4, 8, 16)
"""Numbers of concurrent requests of each round."""


@dataclass(frozen=True, slots=True)
class ProfiledRequest:
    """A request to record, and the kind of traffic that it stands for."""

    kind: str
    request: Any


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a recorded request, with its outputs in memory."""

    op: BatchKey
    key: str
    length: int
    depth: int
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _TimedBatch:
    op: BatchKey
    calls: Sequence[tuple[int, int]]
    """Recorded request, and index of the call in it."""
    seconds: float
    round: int


@dataclass(slots=True)
class _Recording:
    """Calls of each request, and all timed batches."""

    calls: dict[int, list[_Call]] = field(default_factory=lambda: defaultdict[int, list[_Call]](list))
    index: dict[int, dict[str, list[int]]] = field(
        default_factory=lambda: defaultdict[int, dict[str, list[int]]](lambda: defaultdict(list))
    )
    single: list[_TimedBatch] = field(default_factory=list[_TimedBatch])
    crowded: list[_TimedBatch] = field(default_factory=list[_TimedBatch])


class _RecordingEngine(VirtualEngine[StateHistory]):
    """Executes everything on a real engine. Calls return their first recorded outputs, also in later rounds."""

    def __init__(
        self, recording: _Recording, ops: Mapping[BatchKey, Op], real: RealEngineMirror, recorded: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.timed: list[tuple[BatchKey, list[tuple[int, int]], float]] = []
        self._recording = recording
        self._ops = ops
        self._real = real
        self._recorded = recorded
        self._used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def new_history(self, component: str, kind: str) -> StateHistory:
        """History of a new state."""
        return StateHistory(new_history(component, kind))

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command on the real engine too."""
        if not isinstance(command, Batch):
            self._real.execute(command)
        return super().execute(command)

    def execute_batch(self, batch: Batch) -> BatchFinished:
        """Run the batch, and record its calls and its duration."""
        op = self._ops[batch.key]
        histories = [state_histories(job, self.states) for job in batch.jobs]
        keys = [key_of(batch.key, job, own) for job, own in zip(batch.jobs, histories, strict=True)]
        report = self._real.run(batch)
        calls = list[tuple[int, int]]()
        for job, key, own, result in zip(batch.jobs, keys, histories, report.results, strict=True):
            if not isinstance(result, JobDone):
                fix = "record requests that succeed"
                raise NotProfiled(f"{batch.key} failed while it was profiled: {result}\n  fix: {fix}")
            length = job.length if op.chunked else max([1, *op.lengths([job.arguments])])
            recorded, used = self._recorded[job.rid], self._used[job.rid]
            numbers = self._recording.index[recorded][key]
            if used[key] == len(numbers):
                depth = max([0, *(history.depth for history in own)])
                numbers.append(len(self._recording.calls[recorded]))
                self._recording.calls[recorded].append(_Call(batch.key, key, length, depth, result.values))
            number = numbers[used[key]]
            used[key] += 1
            result.values = self._recording.calls[recorded][number].values
            calls.append((recorded, number))
            extend_states(op, job, key, length, self.states)
        self.timed.append((batch.key, calls, report.seconds))
        return report


class ProfileRecorder:
    """Records a profile of a model whose components are loaded."""

    def __init__(
        self,
        planned: PlannedModel,
        requests: Sequence[ProfiledRequest],
        *,
        rounds: int = ROUNDS,
        crowd_sizes: Sequence[int] = CROWD_SIZES,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """The plans must have one worker. `progress` gets the finished and all servings."""
        self._planned = planned
        self._requests = requests
        self._rounds = rounds
        self._ops = ops_of(planned)
        is_batched = any(op.batch is not alone for op in self._ops.values())
        self._crowd_sizes = crowd_sizes if is_batched else ()
        self._progress = progress
        self._recording = _Recording()
        self._outputs: list[list[RecordedOutput]] = []

    def record(self, target: str, device: DeviceCosts) -> ModelProfile:
        """Measure everything; return the profile, with the costs in `device`."""
        count, done = len(self._requests), 0
        total = count * (1 + self._rounds) + len(self._crowd_sizes) * self._rounds
        for number in range(count):  # the first serving of a request loads and compiles
            (result,), _ = self._serve([number])
            self._outputs.append(
                [
                    RecordedOutput(kind, seconds or 1.0)
                    for kind, (_, seconds) in zip(result.kinds, result.chunks, strict=True)
                ]
            )
            done += 1
            self._report(done, total)
        for round_number in range(self._rounds):
            for number in range(count):
                self._recording.single += self._timed([number], round_number)
                done += 1
                self._report(done, total)
            for size in self._crowd_sizes:
                self._recording.crowded += self._timed([each % count for each in range(size)], round_number)
                done += 1
                self._report(done, total)
        return self._profile(target, device)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _serve(self, numbers: Sequence[int]) -> tuple[list[ClientResult], _RecordingEngine]:
        """Serve these recorded requests at once, in virtual time on a real engine."""
        recorded = {str(rid): number for rid, number in enumerate(numbers, 1)}
        arrivals = [
            RecordedArrival(0.0, number, MODEL_NAME, Slo(tokens_per_s=1.0), self._requests[number].request)
            for number in numbers
        ]  # at a token per second, the duration of a text is its number of tokens
        with RealEngineMirror(MODEL_NAME, self._planned.model) as real:
            engine = _RecordingEngine(self._recording, self._ops, real, recorded)
            results = CapacitySimulation({MODEL_NAME: self._planned}, lambda: engine).run(arrivals)
        for number, result in zip(numbers, results, strict=True):
            if result.status != "ok":
                problem = f"request {number} ({self._requests[number].kind}) ended with {result.status}"
                raise NotProfiled(f"{problem}\n  fix: profile requests that end with status ok")
        return results, engine

    def _timed(self, numbers: Sequence[int], round_number: int) -> list[_TimedBatch]:
        return [_TimedBatch(*batch, round_number) for batch in self._serve(numbers)[1].timed]

    # ---------------------------------------------------------------- result
    def _profile(self, target: str, device: DeviceCosts) -> ModelProfile:
        names = [str(key) for key in self._ops]
        numbers = {key: number for number, key in enumerate(self._ops)}
        requests = [
            RecordedRequest(
                one.kind,
                pack_value(one.request),
                [
                    RecordedCall(numbers[call.op], call.key, call.length, call.depth, pack_value(call.values))
                    for call in self._recording.calls[number]
                ],
                self._outputs[number],
            )
            for number, one in enumerate(self._requests)
        ]
        device.source = MEASURED
        device.calls_s = self._calls_s()
        device.ops = [self._op_costs(key, device.calls_s) for key in self._ops]
        return ModelProfile(
            model=target,
            walks=fingerprint_walks(self._planned.model.graphs()),
            mstar=metadata.version("mstar-serve"),
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            ops=names,
            requests=requests,
            devices=[device],
        )

    def _calls_s(self) -> list[list[float]]:
        """Mean seconds of each call alone. A call that only ran in batches gets its share of them."""
        seconds = defaultdict[tuple[int, int], list[float]](list)
        for batches in (self._recording.single, self._recording.crowded):
            known = set(seconds)
            for batch in batches:
                for call in batch.calls:
                    if call not in known:
                        seconds[call].append(batch.seconds / len(batch.calls))
        return [
            [fmean(seconds[number, index] or [0.0]) for index in range(len(self._recording.calls[number]))]
            for number in range(len(self._requests))
        ]

    def _op_costs(self, key: BatchKey, calls_s: Sequence[Sequence[float]]) -> OpCosts:
        """Costs of one op: mean, rounds, batches and lengths."""
        by_size = defaultdict[int, list[tuple[float, float]]](list)
        by_round = defaultdict[int, float](float)
        by_length = defaultdict[int, list[float]](list)
        own = [batch for batch in (*self._recording.single, *self._recording.crowded) if batch.op == key]
        for batch in own:
            apart = [calls_s[recorded][index] for recorded, index in batch.calls]
            by_size[len(apart)].append((batch.seconds, fmean(apart)))
            by_round[batch.round] += batch.seconds
            for (recorded, index), seconds in zip(batch.calls, apart, strict=True):
                by_length[self._recording.calls[recorded][index].length].append(seconds)
        if not own:
            return OpCosts(str(key), 0.0, 1.0, 1.0, 0)
        is_batched = self._ops[key].batch is not alone
        batches = [_batch_cost(size, pairs) for size, pairs in sorted(by_size.items()) if is_batched or size == 1]
        mean = fmean(by_round.values())
        return OpCosts(
            str(key),
            fmean(seconds for each in by_length.values() for seconds in each),
            min(by_round.values()) / mean,
            max(by_round.values()) / mean,
            sum(len(batch.calls) for batch in own),
            [BatchCost(1, 1.0, len(by_size[1])), *(batch for batch in batches if batch.size > 1)],
            [(length, fmean(each)) for length, each in sorted(by_length.items())],
        )


def _batch_cost(size: int, pairs: Iterable[tuple[float, float]]) -> BatchCost:
    """Of the seconds of batches of one size, and the mean seconds of their calls alone."""
    together, apart = zip(*pairs, strict=True)
    return BatchCost(size, sum(together) / (sum(apart) or 1.0), len(together))
