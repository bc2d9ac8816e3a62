"""What a worker says that it has to do, and what one more would need."""

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


def make_request(name="r", **start):
    one = WorkerRequest(name, 0, None)
    start = StartWalk(name, 0, 0, "m", "w", (), {}, {}, Peer("f", 0), **{"slo": Slo(), "first_due_in_s": 1.0} | start)
    one.walk_run = WalkRun(None, one, start, None, 0)
    one.walk_run.start_playback_clocks(0.0)
    return one


def stream(one, guest, calls, seconds, now=0.5):
    """A stream that calls so often and then emits so many seconds."""
    for _ in range(calls):
        guest.walk_run.completed_calls[0] += 1
        one.on_call(guest.walk_run, 0)
    one.on_emission(now, guest.walk_run, AUDIO, np.zeros(int(1000 * seconds)))


def test_what_streams_need_follows_from_what_they_did():
    one, first = make_estimator(), make_request()
    assert one.estimate_load([first]).demands == {}
    stream(one, first, 5, 2.0)
    stream(one, first, 20, 1.0)  # while two seconds were played; ten calls of 10 ms in each
    load = one.estimate_load([first, make_request("other")])
    assert load.utilization == pytest.approx(0.1)  # they share their batches
    need = load.demands["m"]
    assert (need.solo_utilization, need.added_utilization) == (pytest.approx(0.1), pytest.approx(0.0))
    assert need.first_output_s == pytest.approx(0.05)  # five calls came before the first sound


def test_what_does_not_share_its_batches_needs_more():
    one, first = make_estimator(slope=1.0), make_request()
    stream(one, first, 0, 2.0)
    stream(one, first, 20, 1.0)
    load = one.estimate_load([first, make_request("other")])
    assert load.utilization == pytest.approx(0.2)
    assert load.demands["m"].added_utilization == pytest.approx(0.1)


def test_best_effort_requests_need_nothing():
    one, job = make_estimator(), make_request(slo=Slo(best_effort=True))
    stream(one, job, 20, 1.0)
    assert one.estimate_load([job]).utilization == 0.0
    assert one.deadline_stats() == []


def test_prediction_errors_are_measured():
    one, first = make_estimator(), make_request(predicted_ttft_s=0.4, first_due_in_s=1.0)
    stream(one, first, 5, 1.0, now=0.5)
    (count,) = one.deadline_stats()
    assert (count.predictions, count.relative_error, count.within_25pct) == (1, pytest.approx(0.2), 1)
    assert (count.count, count.misses) == (1, 0)


def test_what_a_client_had_before_does_not_count_again():
    one, again = make_estimator(), make_request()
    again.consumed["Audio"] = 2
    for number in range(3):
        one.on_emission(0.5, again.walk_run, AUDIO, np.zeros(1000))
        again.walk_run.emission_counts["Audio"] += 1
        assert (one.deadline_stats()[0].count if one.deadline_stats() else 0) == max(0, number - 1)
