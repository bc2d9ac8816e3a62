"""Capacity estimates from the load that workers report: room, time to first output, queueing delay."""

import pytest

from mstar.conductor.capacity import CapacityEstimator
from mstar.conductor.membership import WorkerLost
from mstar.conductor.model import ConductorModel
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import sim_model
from mstar.wire.messages import Peer, Submit, Value
from mstar.wire.slo import Slo
from mstar.wire.stats import StreamDemand, WorkerLoad


def estimator(placement=None):
    model = sim_model("talk")
    plans = plan(model.graphs(), parse_placement(placement, "a test") if placement else None)
    capacity = CapacityEstimator({"talk": ConductorModel.from_plans(model, plans)})
    return capacity, plans.workers


def submit(rid="r", **slo):
    return Submit(rid, "talk", Value(None), slo=Slo(**slo))


def load(utilization, added=0.2, solo=0.2, first_s=0.3, per_concurrent_s=0.1):
    return WorkerLoad(utilization, {"talk": StreamDemand(solo, added, first_s, per_concurrent_s)})


def test_a_request_without_statistics_is_admitted():
    capacity, _ = estimator()
    assert capacity.has_room(submit(ttft_s=0.1))
    assert capacity.predict_ttft_s(0.0, submit(), 0) == 0.0


def test_an_slo_is_accepted_while_there_is_capacity():
    capacity, (worker,) = estimator()
    capacity.update_load(worker, load(0.45))
    admitted = 0
    while capacity.has_room(submit(ttft_s=1.0)):
        capacity.on_admitted(submit(f"r{admitted}", ttft_s=1.0))
        admitted += 1
    assert admitted == 2  # 0.45 + 2 * 0.2 is 0.85, and one more would be 1.05
    assert capacity.predict_ttft_s(0.0, submit(best_effort=True), 0) == pytest.approx(0.3 + 2 * 0.1)
    capacity.update_load(worker, load(0.5))  # the report includes the admitted requests
    assert capacity.has_room(submit(ttft_s=1.0))


def test_without_an_slo_no_request_is_rejected():
    capacity, (worker,) = estimator()
    capacity.update_load(worker, load(3.0))
    assert capacity.has_room(submit())
    capacity.on_admitted(submit("with-slo", ttft_s=1.0))
    assert not capacity.has_room(submit())
    assert capacity.has_room(submit(best_effort=True))
    capacity.on_finished(1.0, "with-slo")
    assert capacity.has_room(submit())


def test_a_model_that_cannot_meet_its_slo_alone_is_served():
    capacity, (worker,) = estimator()
    capacity.update_load(worker, load(2.0, solo=1.5))
    assert capacity.has_room(submit(ttft_s=1.0))


def test_one_replica_with_capacity_is_enough():
    capacity, workers = estimator({"place": {"lm": ["a", "b"]}})
    assert workers == ("a", "b")
    capacity.update_load("a", load(0.95))
    capacity.update_load("b", load(0.6))
    assert capacity.has_room(submit(ttft_s=1.0))
    capacity.on_admitted(submit("r", ttft_s=1.0))
    assert not capacity.has_room(submit(ttft_s=1.0))
    capacity.on_worker_lost(0.0, WorkerLost(Peer("a", 0)))
    assert capacity.has_room(submit(ttft_s=1.0))  # its next incarnation starts idle


def test_an_slo_that_cannot_be_met_is_rejected():
    capacity, (worker,) = estimator()
    capacity.update_load(worker, load(0.2, first_s=0.5))
    assert capacity.ttft_overrun_s(0.0, submit(ttft_s=0.6), queued=0) == 0.0
    assert capacity.ttft_overrun_s(0.0, submit(ttft_s=0.4), queued=0) == pytest.approx(0.1)
    assert capacity.ttft_overrun_s(0.0, submit(ttft_s=0.6), queued=1) == pytest.approx(
        1.9
    )  # no completions yet: 1 s each
    assert capacity.ttft_overrun_s(0.0, submit(), queued=5) == 0.0


def test_the_queueing_delay_follows_from_the_completion_rate():
    capacity, _ = estimator()
    for at in range(5):
        capacity.on_finished(at / 2, f"r{at}")
    assert capacity.estimate_wait_s(2.5, 4) == pytest.approx(2.0)
    assert capacity.estimate_wait_s(2.5, 0) == 0.1


def test_a_request_that_could_wait_for_too_long_is_rejected_at_once():
    capacity, (worker,) = estimator()
    capacity.update_load(worker, load(0.2, first_s=0.1))
    for at in range(5):
        capacity.on_finished(at / 5, f"r{at}")
    assert capacity.predict_ttft_s(1.0, submit(), queued=1) == pytest.approx(0.5), "on average, behind two others"
    assert capacity.ttft_overrun_s(1.0, submit(ttft_s=0.6), queued=1) == 0.1, "but one in four waits for longer"
    assert capacity.ttft_overrun_s(1.0, submit(ttft_s=1.1), queued=1) == 0.0
