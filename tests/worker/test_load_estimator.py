"""Load estimates: utilization, demand of one more stream, deadline statistics."""

import numpy as np
import pytest

from mstar.plan.tables import Emit
from mstar.wire.messages import Peer, StartWalk
from mstar.wire.slo import Slo
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.load_estimator import LoadEstimator

AUDIO = Emit("Audio", (("rate", 1000),))


def make_estimator(slope=0.0):
    costs = CostModel()
    for size in range(1, 9):
        costs.learn(("m", 0), size, 0.01 * (1 + slope * (size - 1)))
    return LoadEstimator(costs.predict_s)


def make_request(estimator, name="r", **start):
    request = WorkerRequest(name, 0, None)
    start = StartWalk(name, 0, 0, "m", "w", (), {}, {}, Peer("f", 0), **{"slo": Slo(), "first_due_in_s": 1.0} | start)
    request.walk_run = WalkRun(None, request, start, None, 0)
    request.walk_run.start_playback_clocks(0.0)
    estimator.on_walk_started(request.walk_run, None)
    return request


def stream(estimator, request, calls, seconds, now=0.5):
    """Run a number of calls, then emit some seconds of audio."""
    for _ in range(calls):
        request.walk_run.completed_calls[0] += 1
        estimator.on_call(request.walk_run, 0)
    estimator.on_emission(now, request.walk_run, AUDIO, np.zeros(int(1000 * seconds)))


def test_demand_is_learned_from_finished_calls_and_emissions():
    estimator = make_estimator()
    first = make_request(estimator)
    assert estimator.estimate_load().demands == {}
    stream(estimator, first, 5, 2.0)
    stream(estimator, first, 20, 1.0)  # while two seconds were played; ten calls of 10 ms in each
    make_request(estimator, "other")
    load = estimator.estimate_load()
    assert load.utilization == pytest.approx(0.1)  # they share their batches
    need = load.demands["m"]
    assert (need.solo_utilization, need.added_utilization) == (pytest.approx(0.1), pytest.approx(0.0))
    assert need.first_output_s == pytest.approx(0.05)  # five calls came before the first sound


def test_streams_that_cannot_share_batches_need_more():
    estimator = make_estimator(slope=1.0)
    first = make_request(estimator)
    stream(estimator, first, 0, 2.0)
    stream(estimator, first, 20, 1.0)
    make_request(estimator, "other")
    load = estimator.estimate_load()
    assert load.utilization == pytest.approx(0.2)
    assert load.demands["m"].added_utilization == pytest.approx(0.1)


def test_the_first_output_of_a_new_stream_waits_for_those_that_have_not_started():
    estimator = make_estimator(slope=1.0)
    first = make_request(estimator)
    stream(estimator, first, 5, 2.0)
    stream(estimator, first, 20, 1.0)
    make_request(estimator, "unstarted")
    need = estimator.estimate_load().demands["m"]
    assert need.first_output_s == pytest.approx(0.1)  # five calls of 10 ms, for two streams
    assert need.per_concurrent_s == pytest.approx(0.05)


def test_best_effort_requests_need_nothing():
    estimator = make_estimator()
    stream(estimator, make_request(estimator, slo=Slo(best_effort=True)), 20, 1.0)
    assert estimator.estimate_load().utilization == 0.0
    assert estimator.deadline_stats() == []


def test_prediction_errors_are_measured():
    estimator = make_estimator()
    first = make_request(estimator, predicted_ttft_s=0.4, first_due_in_s=1.0)
    stream(estimator, first, 5, 1.0, now=0.5)
    (count,) = estimator.deadline_stats()
    assert (count.predictions, count.relative_error, count.within_25pct) == (1, pytest.approx(0.2), 1)
    assert (count.count, count.misses) == (1, 0)


def test_replayed_emissions_are_not_counted_again():
    estimator = make_estimator()
    again = make_request(estimator)
    again.consumed["Audio"] = 2
    for number in range(3):
        estimator.on_emission(0.5, again.walk_run, AUDIO, np.zeros(1000))
        again.walk_run.emission_counts["Audio"] += 1
        assert (estimator.deadline_stats()[0].count if estimator.deadline_stats() else 0) == max(0, number - 1)


def test_a_stream_counts_with_its_last_walk_until_its_request_is_closed():
    estimator = make_estimator(slope=1.0)
    first = make_request(estimator)
    stream(estimator, first, 5, 2.0)
    stream(estimator, first, 20, 1.0)
    assert estimator.estimate_load().utilization == pytest.approx(0.1)
    next_walk = make_request(make_estimator()).walk_run
    estimator.on_walk_started(next_walk, first.walk_run)
    assert estimator.estimate_load().utilization == pytest.approx(0.1)
    assert estimator.estimate_load().demands["m"].first_output_s == pytest.approx(0.1)  # it has not started again
    estimator.set_playback(0.5, next_walk, {"Audio": 1.0})
    assert estimator.estimate_load().demands["m"].first_output_s == pytest.approx(0.05)
    estimator.on_request_closed(next_walk)
    assert estimator.estimate_load().utilization == 0.0
