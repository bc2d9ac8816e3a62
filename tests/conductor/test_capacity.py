"""Whom a conductor takes on, by what workers say."""

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


def admission(placement=None):
    model = sim_model("talk")
    plans = plan(model.graphs(), parse_placement(placement, "a test") if placement else None)
    found = CapacityEstimator({"talk": ConductorModel.from_plans(model, plans)})
    return found, plans.workers


def submit(rid="r", **pace):
    return Submit(rid, "talk", Value(None), slo=Slo(**pace))


def load(share, extra=0.2, single_s=0.2, first=0.3, each=0.1):
    return WorkerLoad(share, {"talk": StreamDemand(single_s, extra, first, each)})


def test_a_request_without_statistics_is_admitted():
    one, _ = admission()
    assert one.has_room(submit(ttft_s=0.1))
    assert one.predict_ttft_s(0.0, submit(), 0) == 0.0


def test_an_slo_is_accepted_while_there_is_capacity():
    one, (worker,) = admission()
    one.update_load(worker, load(0.45))
    taken = 0
    while one.has_room(submit(ttft_s=1.0)):
        one.on_admitted(submit(f"r{taken}", ttft_s=1.0))
        taken += 1
    assert taken == 2  # 0.45 + 2 * 0.2 is 0.85, and one more would be 1.05
    assert one.predict_ttft_s(0.0, submit(best_effort=True), 0) == pytest.approx(0.3 + 2 * 0.1)
    one.update_load(worker, load(0.5))  # the worker counts them from now on
    assert one.has_room(submit(ttft_s=1.0))


def test_without_an_slo_no_request_is_rejected():
    one, (worker,) = admission()
    one.update_load(worker, load(3.0))
    assert one.has_room(submit())
    one.on_admitted(submit("promised", ttft_s=1.0))
    assert not one.has_room(submit())
    assert one.has_room(submit(best_effort=True))
    one.on_finished(1.0, "promised")
    assert one.has_room(submit())


def test_a_model_that_cannot_meet_its_slo_alone_is_served():
    one, (worker,) = admission()
    one.update_load(worker, load(2.0, single_s=1.5))
    assert one.has_room(submit(ttft_s=1.0))


def test_one_replica_with_capacity_is_enough():
    one, workers = admission({"place": {"lm": ["a", "b"]}})
    assert workers == ("a", "b")
    one.update_load("a", load(0.95))
    one.update_load("b", load(0.6))
    assert one.has_room(submit(ttft_s=1.0))
    one.on_admitted(submit("r", ttft_s=1.0))
    assert not one.has_room(submit(ttft_s=1.0))
    one.on_worker_lost(0.0, WorkerLost(Peer("a", 0)))
    assert one.has_room(submit(ttft_s=1.0))  # it comes back with nothing to do


def test_an_slo_that_cannot_be_met_is_rejected():
    one, (worker,) = admission()
    one.update_load(worker, load(0.2, first=0.5))
    assert one.ttft_overrun_s(0.0, submit(ttft_s=0.6), queued=0) == 0.0
    assert one.ttft_overrun_s(0.0, submit(ttft_s=0.4), queued=0) == pytest.approx(0.1)
    assert one.ttft_overrun_s(0.0, submit(ttft_s=0.6), queued=1) == pytest.approx(
        1.9
    )  # nobody has ended: a second each
    assert one.ttft_overrun_s(0.0, submit(), queued=5) == 0.0


def test_how_long_there_is_to_wait_follows_from_how_fast_others_end():
    one, _ = admission()
    for at in range(5):
        one.on_finished(at / 2, f"r{at}")
    assert one.estimate_wait_s(2.5, 4) == pytest.approx(2.0)
    assert one.estimate_wait_s(2.5, 0) == 0.1
