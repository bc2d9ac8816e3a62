"""Replay of a profile: the capacity simulation of a deployment whose requests are recorded ones.

An arrival names a recorded request of the profile. Its calls return their recorded outputs and take what the profile
says for the device of their component. Devices are set by component, so that a placement can have several kinds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar.config import RuntimeConfig
from mstar.engine.jobs import UNFINISHED, Job, JobDone, Result
from mstar.errors import MstarError
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import (
    DeviceCosts,
    ModelProfile,
    PackedValue,
    call_key,
    extended_history,
    fingerprint_walks,
    new_history,
)
from mstar.plan.tables import BatchKey
from mstar.sim.capacity_sim import CapacitySimulation, ClientResult
from mstar.sim.virtual_engine import VirtualEngine, split_chunks
from mstar.transfer import values
from mstar.walk.component import Op
from mstar.wire.slo import Slo
from mstar.worker.commands import Batch, BatchFinished, StateRef


class NotProfiled(MstarError):
    """A simulation needs something that the profile does not have."""


@dataclass(frozen=True, slots=True)
class RecordedArrival:
    """A future request: its time, its model, and the number of the recorded request that it repeats."""

    at: float
    recorded: int
    model: str = "model"
    slo: Slo = field(default_factory=Slo)
    request: Any = None
    """Filled in by the replay."""


def pack_value(value: Any) -> PackedValue:
    """A value without the contents of its large arrays."""
    sizes: list[int] = []

    def leave_out(content: memoryview) -> int:
        sizes.append(content.nbytes)
        return len(sizes) - 1

    return PackedValue(values.pack(value, leave_out), tuple(sizes))


def unpack_value(packed: PackedValue) -> Any:
    """A value of a profile, with zeros in its large arrays. Tensors are numpy arrays in a process without torch."""
    placed = [bytearray(size) for size in packed.large]
    return values.unpack(packed.data, placed, numpy_only="torch" not in sys.modules)


@dataclass(frozen=True, slots=True)
class StateHistory:
    """History of a state, and the number of positions that were written to it."""

    key: str
    depth: int = 0


def state_histories(job: Job, states: Mapping[int, StateHistory]) -> list[StateHistory]:
    """Histories of the states of a call."""
    return [states[value.number] for value in job.arguments.values() if isinstance(value, StateRef)]


def key_of(key: BatchKey, job: Job, histories: Sequence[StateHistory]) -> str:
    """Key of a call in a profile."""
    plain = {name: value for name, value in job.arguments.items() if not isinstance(value, StateRef)}
    return call_key(str(key), plain, [history.key for history in histories])


def extend_states(op: Op, job: Job, key: str, length: int, states: dict[int, StateHistory]) -> None:
    """Record that a finished call has written to its states."""
    for name, is_extended in op.states.items():
        if is_extended and isinstance(ref := job.arguments.get(name), StateRef):
            before = states[ref.number]
            states[ref.number] = StateHistory(extended_history(before.key, f"{key} {name}"), before.depth + length)


class Replay:
    """Outputs and costs of the calls of one simulated run. All of its engines share it."""

    def __init__(
        self,
        profile: ModelProfile,
        devices: Mapping[str, DeviceCosts],
        arrivals: Sequence[RecordedArrival],
        factor: float,
    ) -> None:
        """`devices` are the costs by component; `factor` is the cost within its error, from -1 to 1."""
        self._profile = profile
        self._devices = devices
        self._factor = factor
        self._recorded = {str(number): arrival.recorded for number, arrival in enumerate(arrivals, 1)}
        """Recorded request by request id: a capacity simulation numbers its requests."""
        self._op_numbers = {name: number for number, name in enumerate(profile.ops)}
        self._indexes: dict[int, dict[str, list[int]]] = {}
        """Calls of each recorded request by key, in order."""
        self._outputs: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """How many calls of each key a request has made."""
        self._ends: list[float] = []
        """Times at which the running batches end, on devices that share a host."""

    def find(self, key: BatchKey, job: Job, histories: Sequence[StateHistory]) -> tuple[int, int, str]:
        """Recorded request, index of the recorded call in it, and key of a call that starts."""
        recorded = self._recorded[job.rid]
        if recorded not in self._indexes:
            index = self._indexes[recorded] = defaultdict[str, list[int]](list)
            for number, call in enumerate(self._profile.requests[recorded].calls):
                index[call.key].append(number)
        call = key_of(key, job, histories)
        numbers = self._indexes[recorded].get(call)
        if not numbers:
            problem = f"request {recorded} of the profile of {self._profile.model} has no such call of {key}"
            raise NotProfiled(f"{problem}\n  fix: profile again: the model has changed, or its requests differ by run")
        used = self._used[job.rid]
        number = numbers[min(used[call], len(numbers) - 1)]
        used[call] += 1
        return recorded, number, call

    def outputs(self, recorded: int, number: int) -> tuple[Any, ...]:
        """Outputs of a recorded call."""
        if (recorded, number) not in self._outputs:
            packed = self._profile.requests[recorded].calls[number].outputs
            self._outputs[recorded, number] = tuple(unpack_value(packed))
        return self._outputs[recorded, number]

    def share_host(self, key: BatchKey, now: float, seconds: float) -> float:
        """Seconds of a batch that starts now, with the workers that compute on the same host."""
        device = self._devices[key.component]
        if not device.shared:
            return seconds
        self._ends = [end for end in self._ends if end > now]
        seconds *= device.shared_ratio(len(self._ends) + 1)
        self._ends.append(now + seconds)
        return seconds

    def batch_s(self, key: BatchKey, calls: Sequence[tuple[int, int]], fractions: Sequence[float]) -> float:
        """Seconds of a batch of these parts of calls."""
        device = self._devices[key.component]
        alone = [
            device.calls_s[recorded][number] * part for (recorded, number), part in zip(calls, fractions, strict=True)
        ]
        return device.batch_s(self._op_numbers[str(key)], alone, self._factor)


class ReplayEngine(VirtualEngine[StateHistory]):
    """Engine of one worker that replays a profile."""

    def __init__(
        self, replay: Replay, ops: Mapping[BatchKey, Op], token_budget: int | None, clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._replay = replay
        self._clock = clock
        self._ops = ops
        self._token_budget = token_budget
        self._started: dict[Job, tuple[int, int, str]] = {}
        """Calls of the jobs that have more chunks to run."""

    def new_history(self, component: str, kind: str) -> StateHistory:
        """History of a new state."""
        return StateHistory(new_history(component, kind))

    def execute_batch(self, batch: Batch) -> BatchFinished:
        """Look up outputs and cost, and extend the histories of the states."""
        replay, key, op = self._replay, batch.key, self._ops[batch.key]
        starting = [
            self._started.pop(job, None) or replay.find(key, job, state_histories(job, self.states))
            for job in batch.jobs
        ]
        calls = [(recorded, number) for recorded, number, _ in starting]
        whole = replay.batch_s(key, calls, [1.0] * len(calls))
        parts = split_chunks(op, batch, whole, self._token_budget)
        results: list[Result] = []
        for job, (recorded, number, call) in zip(batch.jobs, starting, strict=True):
            if job.end < job.length:
                self._started[job] = recorded, number, call
                results.append(UNFINISHED)
                continue
            results.append(JobDone(replay.outputs(recorded, number)))
            extend_states(op, job, call, 0, self.states)
        seconds = replay.share_host(key, self._clock(), replay.batch_s(key, calls, parts))
        return BatchFinished(batch.number, results, seconds)


def ops_of(planned: PlannedModel) -> dict[BatchKey, Op]:
    """Ops of a model by batch key."""
    components = planned.model.components()
    return {key: components[key.component].ops()[key.op] for key in planned.plans.keys}


def require_same_walks(profile: ModelProfile, planned: PlannedModel) -> None:
    """Raise NotProfiled if the walks of a model are not those of a profile."""
    if fingerprint_walks(planned.model.graphs()) != profile.walks:
        problem = f"the walks of {profile.model} are not those that were profiled"
        raise NotProfiled(f"{problem}\n  fix: profile this version of the model with `mstar profile`")


def simulate_profile(
    planned: PlannedModel,
    profile: ModelProfile,
    devices: Mapping[str, DeviceCosts],
    arrivals: Sequence[RecordedArrival],
    *,
    options: RuntimeConfig | None = None,
    factor: float = 0.0,
) -> list[ClientResult]:
    """Simulate recorded requests on a deployment; return what each client receives and when.

    `devices` has the costs of each component. The profile must be one of the model: see `require_same_walks`.
    """
    options = options or RuntimeConfig()
    requests = [unpack_value(recorded.request) for recorded in profile.requests]
    filled = [RecordedArrival(one.at, one.recorded, one.model, one.slo, requests[one.recorded]) for one in arrivals]
    replay, ops = Replay(profile, devices, filled, factor), ops_of(planned)
    models = {arrival.model: planned for arrival in filled[:1]}

    def new_engine() -> ReplayEngine:
        return ReplayEngine(replay, ops, options.max_batched_tokens, lambda: simulation.now)

    simulation = CapacitySimulation(models, new_engine, options=options, hop_s=profile.hop_s)
    return simulation.run(filled)
