"""Whom a conductor takes on, by what workers say."""

import pytest

from mstar.conductor.admission import Admission
from mstar.conductor.core import Served
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import model_of
from mstar.wire.figures import Load, Need
from mstar.wire.messages import Submit, Value
from mstar.wire.pace import Pace


def admission(placement=None):
    model = model_of("talk")
    plans = plan(model.graphs(), parse_placement(placement, "a test") if placement else None)
    found = Admission({"talk": Served.of(model, plans)})
    return found, plans.workers


def submit(rid="r", **pace):
    return Submit(rid, "talk", Value(None), pace=Pace(**pace))


def load(share, more=0.2, alone=0.2, first=0.3, each=0.1):
    return Load(share, {"talk": Need(alone, more, first, each)})


def test_who_is_known_to_nobody_is_taken_on():
    one, _ = admission()
    assert one.has_room(submit(first_s=0.1))
    assert one.forecast(0.0, submit(), 0) == 0.0


def test_a_promise_is_given_while_there_is_room():
    one, (worker,) = admission()
    one.heard(worker, load(0.45))
    taken = 0
    while one.has_room(submit(first_s=1.0)):
        one.took(submit(f"r{taken}", first_s=1.0))
        taken += 1
    assert taken == 2  # 0.45 + 2 * 0.2 is 0.85, and one more would be 1.05
    assert one.forecast(0.0, submit(is_batch=True), 0) == pytest.approx(0.3 + 2 * 0.1)
    one.heard(worker, load(0.5))  # the worker counts them from now on
    assert one.has_room(submit(first_s=1.0))


def test_without_a_promise_nobody_is_turned_away():
    one, (worker,) = admission()
    one.heard(worker, load(3.0))
    assert one.has_room(submit())
    one.took(submit("promised", first_s=1.0))
    assert not one.has_room(submit())
    assert one.has_room(submit(is_batch=True))
    one.ended(1.0, "promised")
    assert one.has_room(submit())


def test_what_cannot_keep_up_even_alone_is_served_all_the_same():
    one, (worker,) = admission()
    one.heard(worker, load(2.0, alone=1.5))
    assert one.has_room(submit(first_s=1.0))


def test_of_replicas_one_with_room_is_enough():
    one, workers = admission({"place": {"lm": ["a", "b"]}})
    assert workers == ("a", "b")
    one.heard("a", load(0.95))
    one.heard("b", load(0.6))
    assert one.has_room(submit(first_s=1.0))
    one.took(submit("r", first_s=1.0))
    assert not one.has_room(submit(first_s=1.0))
    one.lost("a")
    assert one.has_room(submit(first_s=1.0))  # it comes back with nothing to do


def test_a_promise_that_would_be_broken_is_not_given():
    one, (worker,) = admission()
    one.heard(worker, load(0.2, first=0.5))
    assert one.too_late(0.0, submit(first_s=0.6), waiting=0) == 0.0
    assert one.too_late(0.0, submit(first_s=0.4), waiting=0) == pytest.approx(0.1)
    assert one.too_late(0.0, submit(first_s=0.6), waiting=1) == pytest.approx(1.9)  # nobody has ended: a second each
    assert one.too_late(0.0, submit(), waiting=5) == 0.0


def test_how_long_there_is_to_wait_follows_from_how_fast_others_end():
    one, _ = admission()
    for at in range(5):
        one.ended(at / 2, f"r{at}")
    assert one.wait_s(2.5, 4) == pytest.approx(2.0)
    assert one.wait_s(2.5, 0) == 0.1
