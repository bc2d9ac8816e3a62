"""Capacity simulation: real cores, virtual time, recorded latencies."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, cast

import numpy as np
import pytest

from mstar.config import RuntimeConfig
from mstar.engine.jobs import UNFINISHED, Job, JobDone
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.plan.planned_model import PlannedModel
from mstar.plan.tables import BatchKey
from mstar.sim.call_trace import CallTrace, NotRecorded, TraceEngine, digest_all_arguments, record_trace, simulate
from mstar.sim.capacity_sim import HOP_S, CapacitySimulation
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.control import loop
from mstar.walk.emissions import Audio
from mstar.walk.model import Model, walk
from mstar.walk.states import State
from mstar.walk.types import Float32, Int64, Tensor
from mstar.wire.slo import Slo
from mstar.worker.commands import Batch, BatchFinished, StateRef
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.policy import ChosenBatch, RunnableCalls
from tests.examples.test_examples import NAMES, load, model_of
from tests.tiers import ci_cases

RATE = 100


@dataclass
class Arrival:
    at: float
    request: Any
    model: str = "model"
    slo: Slo = field(default_factory=Slo)


class Past(State):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def fork(self) -> Past:
        copy = Past()
        copy.numbers = [*self.numbers]
        return copy


class Teller(Component):
    """Sums the numbers before."""

    @op
    def read(self, seed: int, past: Past) -> Int64[Tensor, "1"]:
        past.numbers.append(seed)
        return cast("Any", np.array([seed], np.int64))

    @op(batch=stacked)
    def tell(self, number: Int64[Tensor, "1"], past: Past) -> Int64[Tensor, "1"]:
        time.sleep(0.002)  # independent of the batch size
        for row, state in zip(number, rows(past), strict=True):
            state.numbers.append(int(row[0]))
        return cast("Any", np.array([[sum(state.numbers) % 97] for state in rows(past)], np.int64))


class Horn(Component):
    """Returns as many samples as its input."""

    @op
    def blow(self, number: Int64[Tensor, "1"]) -> Float32[Tensor, "S"]:
        time.sleep(0.001 if number[0] % 2 else 0.003)
        return cast("Any", np.zeros(1 + int(number[0]), np.float32))


class Signals(Model):
    def __init__(self) -> None:
        self.teller, self.horn = Teller(), Horn()

    @walk
    def signal(self, seed: int, steps: int) -> Iterator[Audio]:
        past = self.teller.state(Past)
        s = loop(steps=steps, number=self.teller.read(seed, past))
        for _ in s:
            s.number = self.teller.tell(s.number, past)
            yield Audio(self.horn.blow(s.number), rate=RATE)


TELL, BLOW = BatchKey("teller", "tell"), BatchKey("horn", "blow")


@pytest.fixture(scope="module")
def model() -> Signals:
    return Signals()


@pytest.fixture(scope="module")
def trace(model: Signals) -> CallTrace:
    return record_trace(model, [{"seed": 3, "steps": 4}, {"seed": 8, "steps": 4}])


@pytest.fixture
def even_trace(trace: CallTrace) -> CallTrace:
    """The same calls; each takes 10 ms, without a gain by batching."""
    return replace(trace, call_seconds=dict.fromkeys(trace.call_seconds, 0.01), batch_scaling=CostModel())


def planned_model(model: Model, placement: Placement | None = None) -> dict[str, PlannedModel]:
    return {"model": PlannedModel(model, plan(model.graphs(), placement))}


def lengths(seed: int, steps: int) -> list[float]:
    """Expected seconds of each output."""
    numbers, number, seconds = [seed], seed, []
    for _ in range(steps):
        numbers.append(number)
        number = sum(numbers) % 97
        seconds.append((1 + number) / RATE)
    return seconds


def test_a_recorded_request_gives_the_same_outputs(model: Signals, trace: CallTrace):
    (result,) = simulate(planned_model(model), {"model": trace}, [Arrival(0.0, {"seed": 8, "steps": 4})])
    assert result.status == "ok"
    assert [seconds for _, seconds in result.chunks] == lengths(8, 4)


def test_time_passes_as_the_trace_says(model: Signals, even_trace: CallTrace):
    arrivals = [Arrival(1.0, {"seed": 3, "steps": 4})]
    (result,) = simulate(planned_model(model), {"model": even_trace}, arrivals, hop_s=0.001)
    # 3 hops: to the conductor, to the worker, to the client. Each call takes 10 ms and one hop for its report.
    assert [at for at, _ in result.chunks] == pytest.approx([1.003 + 0.011 * calls for calls in (3, 5, 7, 9)])
    assert result.ended_at == pytest.approx(1.003 + 0.099 + 0.001)  # one more hop: the report to the conductor


def test_an_engine_runs_one_batch_after_the_other(model: Signals, even_trace: CallTrace):
    arrivals = [Arrival(0.0, {"seed": 3, "steps": 4}) for _ in range(5)]
    results = simulate(planned_model(model), {"model": even_trace}, arrivals)
    assert 5 * 0.09 < max(result.ended_at for result in results) <= 5 * 0.09 + (45 + 4) * HOP_S
    everywhere = PlacementRule(tuple(f"w{i}" for i in range(5)))
    spread = Placement({"teller": everywhere, "horn": everywhere})
    results = simulate(planned_model(model, spread), {"model": even_trace}, arrivals)
    assert [result.ended_at for result in results] == pytest.approx([0.09 + (9 + 4) * HOP_S] * 5)


def test_batches_take_less_time_per_call(even_trace: CallTrace):
    """By the measured factor; interpolated between measured batch sizes."""
    even_trace.batch_scaling.learn((str(TELL), 0), 1, 1.0)
    even_trace.batch_scaling.learn((str(TELL), 0), 5, 2.0)
    tell, blow = (next(call for call in even_trace.call_seconds if call[0] == key) for key in (TELL, BLOW))
    assert [even_trace.batch_seconds([tell] * count) for count in (1, 3, 5)] == pytest.approx([0.01, 0.015, 0.02])
    assert [even_trace.batch_seconds([blow] * count) for count in (1, 3, 5)] == pytest.approx([0.01, 0.03, 0.05])


def test_states_are_migrated_and_freed(model: Signals, even_trace: CallTrace):
    placement = Placement(
        {"teller.read": PlacementRule(("a",)), "teller.tell": PlacementRule(("b",)), "horn": PlacementRule(("c",))}
    )
    engines: list[TraceEngine] = []

    def engine() -> TraceEngine:
        engines.append(TraceEngine({"model": even_trace}))
        return engines[-1]

    seeds = [3, 8] * 10
    arrivals = [Arrival(0.01 * i, {"seed": seed, "steps": 4}) for i, seed in enumerate(seeds)]
    results = CapacitySimulation(planned_model(model, placement), engine).run(arrivals)
    assert [[seconds for _, seconds in one.chunks] for one in results] == [lengths(seed, 4) for seed in seeds]
    assert [engine.states for engine in engines] == [{}, {}, {}]


def test_a_simulation_is_deterministic(model: Signals, even_trace: CallTrace):
    def results() -> list[Any]:
        arrivals = [Arrival(0.03 * i, {"seed": (3, 8)[i % 3 % 2], "steps": 4}) for i in range(30)]
        return [(one.chunks, one.ended_at) for one in simulate(planned_model(model), {"model": even_trace}, arrivals)]

    assert results() == results()


def test_a_rejected_request_gets_retry_after(model: Signals, even_trace: CallTrace):
    arrivals = [Arrival(0.0, {"seed": 3, "steps": 4}) for _ in range(3)]
    options = RuntimeConfig(max_running_requests=1, max_queued_requests=1)
    *_, result = simulate(planned_model(model), {"model": even_trace}, arrivals, options=options)
    assert (result.status, result.chunks) == ("429", [])
    assert result.retry_after > 0
    assert result.ended_at == pytest.approx(2 * HOP_S)


class LastComeFirstServed:
    """LIFO."""

    def choose(self, now: float, able: RunnableCalls, costs: CostModel, most: Any) -> ChosenBatch:
        key = max(able, key=lambda key: max(waiter.walk_run.number for waiter in able[key]))
        return key, [max(able[key], key=lambda waiter: waiter.walk_run.number)]


def test_another_policy_gives_another_order(model: Signals, even_trace: CallTrace):
    arrivals = [Arrival(0.001 * i, {"seed": 3, "steps": 4}) for i in range(4)]
    results = simulate(planned_model(model), {"model": even_trace}, arrivals, order=LastComeFirstServed())
    ends = [result.ended_at for result in results]
    assert ends[1:] == sorted(ends[1:], reverse=True)  # the first request was alone when it started


def test_a_call_that_was_not_recorded_is_named(model: Signals, even_trace: CallTrace):
    arrivals = [Arrival(0.0, {"seed": 4, "steps": 4})]
    with pytest.raises(NotRecorded, match=r"teller\.read was not recorded with .*\n  fix: record a request"):
        simulate(planned_model(model), {"model": even_trace}, arrivals)


def test_a_call_missing_from_the_trace_is_run(model: Signals, even_trace: CallTrace):
    """It takes the mean time of its op; it must not use a state."""

    def key_function(op: str, arguments: Mapping[str, Any]) -> Hashable | None:
        return None if op == "horn.blow" else digest_all_arguments(op, arguments)

    trace = replace(even_trace, key_function=key_function, mean_seconds_by_op={BLOW: 0.1})
    (result,) = simulate(planned_model(model), {"model": trace}, [Arrival(0.0, {"seed": 8, "steps": 2})])
    assert [seconds for _, seconds in result.chunks] == lengths(8, 2)
    assert result.chunks[-1][0] == pytest.approx(3 * 0.01 + 2 * 0.1 + (5 + 3) * HOP_S)
    with pytest.raises(NotRecorded, match=r"teller\.read uses a state"):
        simulate(
            planned_model(model),
            {"model": replace(even_trace, key_function=lambda *_: None)},
            [Arrival(0.0, {"seed": 8, "steps": 2})],
        )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ci_cases(NAMES, "orpheus"))
def test_an_example_gives_as_many_outputs_as_eagerly(name: str):
    """Twenty concurrent requests, with all kinds of walks, states and streams."""
    module = load(name)
    model, requests = model_of(module), module.requests()
    results = simulate(
        planned_model(model),
        {"model": record_trace(model, requests)},
        [Arrival(0.0, request) for request in requests * 20],
    )
    counts = [len(model_of(module).run(request).emissions) for request in requests]
    assert {result.status for result in results} == {"ok"}
    assert [len(result.chunks) for result in results] == counts * 20


class Reader(Component):
    @op(batch=ragged("T"), chunked=True)
    def read(self, text: Int64[Tensor, "T"], past: Past, layout: Layout = ONE_ROW) -> None: ...


def test_a_long_call_is_chunked():
    """Up to the time limit of the batch and the token budget."""
    key, reader = BatchKey("reader", "read"), Reader()
    call = (key, "long", (7,))
    trace = CallTrace({key: (reader, reader.ops()["read"])}, lambda *_: "long", {call: ()}, {call: 0.1})
    job = Job({"text": np.zeros(100, np.int64), "past": StateRef(1, [])})
    engine = TraceEngine({"model": trace}, token_budget=60)
    engine.states[1] = 7

    def run(time_limit_s: float) -> tuple[Any, float]:
        report = engine.execute(Batch(1, "model", key, [job], [], None, time_limit_s))
        assert isinstance(report, BatchFinished)
        return report.results[0], report.seconds

    assert run(0.03) == (UNFINISHED, pytest.approx(0.03))
    assert run(0.0) == (UNFINISHED, pytest.approx(0.016))  # MIN_CHUNK_POSITIONS
    assert engine.states == {1: 7}
    assert run(inf) == (JobDone(()), pytest.approx(0.054))
    assert engine.states != {1: 7}


def test_a_failing_request_is_not_recorded(model: Signals):
    with pytest.raises(NotRecorded, match="1 of 1 requests ended with failed"):
        record_trace(model, [{"seed": "three", "steps": 1}])


def test_fifty_streams_are_simulated_in_a_bounded_number_of_calls(model: Signals, even_trace: CallTrace):
    """50 concurrent requests are 4.5 s of simulated time: at 0.4 us per call, this is twenty times real time."""
    arrivals = [Arrival(0.0, {"seed": (3, 8)[i % 2], "steps": 4}) for i in range(50)]
    planned = planned_model(model)
    with cProfile.Profile() as profile:  # calls and not seconds: the same number on every machine
        results = simulate(planned, {"model": even_trace}, arrivals)
    assert {result.status for result in results} == {"ok"}
    assert sum(entry.callcount for entry in profile.getstats()) <= 600_000


def test_a_trace_holds_call_latencies(trace: CallTrace):
    blown = {
        int(trace.outputs[call][0].shape[0]) - 1: seconds
        for call, seconds in trace.call_seconds.items()
        if call[0] == BLOW
    }
    assert all((0.001 if number % 2 else 0.003) <= seconds < 0.5 for number, seconds in blown.items())
    tell = [call for call in trace.call_seconds if call[0].op == "tell"]
    assert trace.batch_seconds(tell[:1] * 8) < 4 * trace.batch_seconds(tell[:1])  # batched
    blow = [call for call in trace.call_seconds if call[0] == BLOW]
    assert trace.batch_seconds(blow[:1] * 8) == pytest.approx(8 * trace.batch_seconds(blow[:1]))  # not batched
