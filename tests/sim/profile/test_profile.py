"""Profiles: recording, and replay with the costs of several devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from mstar.config import RuntimeConfig
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import (
    MEASURED,
    BatchCost,
    DeviceCosts,
    ModelProfile,
)
from mstar.sim.capacity_sim import HOP_S
from mstar.sim.profile.profile_recorder import ProfiledRequest, ProfileRecorder
from mstar.sim.profile.profile_replay import (
    NotProfiled,
    RecordedArrival,
    pack_value,
    require_same_walks,
    simulate_profile,
    unpack_value,
)
from tests.examples.test_examples import NAMES, load, model_of
from tests.sim.test_capacity_sim import Signals, lengths
from tests.tiers import ci_cases

REQUESTS = ({"seed": 3, "steps": 4}, {"seed": 8, "steps": 6})


@pytest.fixture(scope="module")
def model() -> Signals:
    return Signals()


@pytest.fixture(scope="module")
def recorded(model: Signals) -> ModelProfile:
    requests = [ProfiledRequest("speech", request) for request in REQUESTS]
    recorder = ProfileRecorder(planned(model), requests, rounds=2, crowd_sizes=(4,))
    return recorder.record("signals", DeviceCosts("cpu", MEASURED, "here"))


@pytest.fixture
def even(recorded: ModelProfile) -> ModelProfile:
    """Each call takes 10 ms; a batch of two or more of `tell` takes as long as one call."""
    profile = msgspec.json.decode(msgspec.json.encode(recorded), type=ModelProfile)
    profile.devices[0].calls_s = [[0.01] * len(request.calls) for request in profile.requests]
    for op in profile.devices[0].ops:
        op.low, op.high, op.batches = 0.5, 2.0, []
        if op.op == "teller.tell":
            op.batches = [BatchCost(1, 1.0, 1), BatchCost(64, 1.0, 1)]
    return profile


def planned(model: Signals, placement: Placement | None = None) -> PlannedModel:
    return PlannedModel(model, plan(model.graphs(), placement))


def devices(profile: ModelProfile) -> Mapping[str, DeviceCosts]:
    return dict.fromkeys(("teller", "horn"), profile.devices[0])


def test_a_profile_has_calls_costs_and_outputs(recorded: ModelProfile, model: Signals):
    assert recorded.ops == ["teller.read", "teller.tell", "horn.blow"]
    assert [len(request.calls) for request in recorded.requests] == [9, 13]
    assert recorded.requests[1].amount("Audio") == pytest.approx(sum(lengths(8, 6)))
    assert recorded.kinds == ("speech",)
    _read, tell, blow = recorded.devices[0].ops
    assert 0.002 <= tell.mean_s < 0.02
    assert 0.001 <= blow.mean_s < 0.02
    assert tell.low <= 1 <= tell.high
    assert {batch.size for batch in tell.batches} > {1}
    assert [batch.size for batch in blow.batches] == [1]  # it cannot be batched
    tells = [call for _, _, call in recorded.calls_of(1)]
    assert [call.depth for call in tells[:4]] == [1, 2, 3, 4]  # one more number in the state after each call
    require_same_walks(recorded, planned(model))


def test_large_arrays_are_zeros_of_the_same_shape(recorded: ModelProfile):
    import numpy as np

    packed = pack_value((np.ones(100, np.float32), np.ones((80, 3000), np.float32)))
    assert packed.large == (80 * 3000 * 4,)
    assert len(packed.data) < 1000
    small, large = unpack_value(packed)
    assert small.sum() == 100
    assert large.shape == (80, 3000)
    assert large.dtype == np.float32
    assert not large.any()


def test_a_replay_gives_the_recorded_outputs(model: Signals, even: ModelProfile):
    arrivals = [RecordedArrival(0.01 * number, number % 2) for number in range(20)]
    results = simulate_profile(planned(model), even, devices(even), arrivals)
    expected = [lengths(**request) for request in REQUESTS]
    assert [[seconds for _, seconds in one.chunks] for one in results] == [expected[i % 2] for i in range(20)]
    assert {kind for one in results for kind in one.kinds} == {"Audio"}


def test_states_move_between_workers(model: Signals, even: ModelProfile):
    placement = Placement({"teller.read": rule("a"), "teller.tell": rule("b", "d"), "horn": rule("c")})
    results = simulate_profile(
        planned(model, placement), even, devices(even), [RecordedArrival(0.0, number % 2) for number in range(8)]
    )
    assert {one.status for one in results} == {"ok"}


@pytest.mark.parametrize(("factor", "call_s"), [(-1.0, 0.005), (0.0, 0.01), (1.0, 0.02), (0.5, 0.015)])
def test_costs_within_their_error(model: Signals, even: ModelProfile, factor: float, call_s: float):
    (result,) = simulate_profile(planned(model), even, devices(even), [RecordedArrival(0.0, 0)], factor=factor)
    assert result.ended_at == pytest.approx(9 * call_s + (9 + 4) * HOP_S)


def test_workers_of_one_host_slow_each_other(model: Signals, even: ModelProfile):
    placement = Placement({"teller": rule("a", "b"), "horn": rule("a", "b")})
    arrivals = [RecordedArrival(0.0, 0)] * 2

    def end(shared: list[float]) -> float:
        even.devices[0].shared = shared
        return max(one.ended_at for one in simulate_profile(planned(model, placement), even, devices(even), arrivals))

    apart = end([])
    assert end([1.0, 1.0]) == pytest.approx(apart)
    assert end([1.0, 1.5]) > 1.2 * apart
    assert even.devices[0].shared_ratio(4) == 3.0  # beyond the measured number the host is full


def test_other_requests_are_refused(model: Signals, even: ModelProfile):
    calls = even.requests[0].calls[:3]
    even.requests[0] = msgspec.structs.replace(even.requests[0], calls=calls)
    with pytest.raises(NotProfiled, match=r"has no such call of teller\.tell.*\n  fix: profile again"):
        simulate_profile(planned(model), even, devices(even), [RecordedArrival(0.0, 0)])


def test_other_walks_are_refused(model: Signals, recorded: ModelProfile):
    with pytest.raises(NotProfiled, match="the walks of signals are not those that were profiled"):
        require_same_walks(msgspec.structs.replace(recorded, walks="0" * 16), planned(model))


def rule(*workers: str) -> PlacementRule:
    return PlacementRule(workers)


def test_options_of_the_runtime_apply(model: Signals, even: ModelProfile):
    arrivals = [RecordedArrival(0.0, 0)] * 4
    together = simulate_profile(planned(model), even, devices(even), arrivals)
    alone = simulate_profile(planned(model), even, devices(even), arrivals, options=RuntimeConfig(max_batch_size=1))
    assert max(one.ended_at for one in together) < max(one.ended_at for one in alone)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ci_cases(NAMES, "orpheus", "bagel", "rag"))
def test_an_example_gives_as_many_outputs_as_eagerly(name: str, tmp_path: Path):
    """Walks, states and streams of all kinds, ten requests at once, from a file."""
    module = load(name)
    model, requests = model_of(module), module.requests()
    plans = PlannedModel(model, plan(model.graphs()))
    recorder = ProfileRecorder(plans, [ProfiledRequest("chat", request) for request in requests], rounds=1)
    recorder.record(name, DeviceCosts("cpu", MEASURED, "")).save(tmp_path / "p.json")
    profile = ModelProfile.load(tmp_path / "p.json")
    arrivals = [RecordedArrival(0.001 * number, number % len(requests)) for number in range(10)]
    components = dict.fromkeys(model.components(), profile.devices[0])
    results = simulate_profile(plans, profile, components, arrivals)
    counts = [len(model_of(module).run(request).emissions) for request in requests]
    assert {result.status for result in results} == {"ok"}
    assert [len(result.chunks) for result in results] == [counts[arrival.recorded] for arrival in arrivals]
