"""What a worker says that it has to do, and what one more would need."""

import numpy as np
import pytest

from mstar.plan.tables import Emit
from mstar.wire.messages import Peer, Start
from mstar.wire.pace import Pace
from mstar.worker.costs import Costs
from mstar.worker.load import Gauge
from mstar.worker.tours import Guest, Tour

AUDIO = Emit("Audio", (("rate", 1000),))


def gauge(slope=0.0):
    costs = Costs()
    for size in range(1, 9):
        costs.learn(("m", 0), size, 0.01 * (1 + slope * (size - 1)))
    return Gauge(costs.of)


def guest(name="r", **start):
    one = Guest(name, 0, None)
    start = Start(name, 0, 0, "m", "w", (), {}, {}, Peer("f", 0), **{"pace": Pace(), "first_in": 1.0} | start)
    one.tour = Tour(None, one, start, None, 0)
    one.tour.begin_clock(0.0)
    return one


def stream(one, guest, calls, seconds, now=0.5):
    """A stream that calls so often and then emits so many seconds."""
    for _ in range(calls):
        guest.tour.calls[0] += 1
        one.called(guest.tour, 0)
    one.emitted(now, guest.tour, AUDIO, np.zeros(int(1000 * seconds)))


def test_what_streams_need_follows_from_what_they_did():
    one, first = gauge(), guest()
    assert one.load([first]).needs == {}
    stream(one, first, 5, 2.0)
    stream(one, first, 20, 1.0)  # while two seconds were played; ten calls of 10 ms in each
    load = one.load([first, guest("other")])
    assert load.share == pytest.approx(0.1)  # they share their batches
    need = load.needs["m"]
    assert (need.alone, need.more) == (pytest.approx(0.1), pytest.approx(0.0))
    assert need.first == pytest.approx(0.05)  # five calls came before the first sound


def test_what_does_not_share_its_batches_needs_more():
    one, first = gauge(slope=1.0), guest()
    stream(one, first, 0, 2.0)
    stream(one, first, 20, 1.0)
    load = one.load([first, guest("other")])
    assert load.share == pytest.approx(0.2)
    assert load.needs["m"].more == pytest.approx(0.1)


def test_jobs_need_nothing():
    one, job = gauge(), guest(pace=Pace(is_batch=True))
    stream(one, job, 20, 1.0)
    assert one.load([job]).share == 0.0
    assert one.kinds() == []


def test_how_wrong_a_forecast_was():
    one, first = gauge(), guest(forecast=0.4, first_in=1.0)
    stream(one, first, 5, 1.0, now=0.5)
    (count,) = one.kinds()
    assert (count.forecasts, count.missed, count.close) == (1, pytest.approx(0.2), 1)
    assert (count.count, count.late) == (1, 0)


def test_what_a_client_had_before_does_not_count_again():
    one, again = gauge(), guest()
    again.taken["Audio"] = 2
    for number in range(3):
        one.emitted(0.5, again.tour, AUDIO, np.zeros(1000))
        again.tour.counts["Audio"] += 1
        assert (one.kinds()[0].count if one.kinds() else 0) == max(0, number - 1)
