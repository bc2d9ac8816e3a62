"""What has no clock is shared by weight between keys."""

from types import SimpleNamespace as Thing

from mstar.wire.pace import Pace
from mstar.worker.shares import Shares


def waiter(tenant, weight=1.0):
    return Thing(tour=Thing(start=Thing(tenant=tenant, pace=Pace(weight=weight))))


def served(able, rounds, shares=None):
    """Who is served when each wants something all the time, one at a time, and each takes a second."""
    shares, counts = shares or Shares(), dict.fromkeys(able, 0)
    for _ in range(rounds):
        waiting = {("m", number): [waiter(name, weight)] for number, (name, weight) in enumerate(able.items())}
        key = min(shares.turn(waiting))
        (chosen,) = waiting[key]
        shares.took([chosen], 1.0)
        counts[chosen.tour.start.tenant] += 1
    return counts


def test_equal_keys_get_equal_parts():
    assert served({"a": 1.0, "b": 1.0, "c": 1.0}, 30) == {"a": 10, "b": 10, "c": 10}


def test_a_key_with_three_times_the_weight_gets_three_times_as_much():
    assert served({"a": 3.0, "b": 1.0}, 40) == {"a": 30, "b": 10}


def test_a_key_that_had_nothing_to_do_is_not_paid_back():
    shares = Shares()
    served({"a": 1.0, "b": 1.0}, 2, shares)
    served({"a": 1.0}, 50, shares)
    assert served({"a": 1.0, "b": 1.0}, 20, shares)["a"] in (9, 10)


def test_with_one_key_nothing_changes():
    shares, able = Shares(), {("m", 0): [waiter("a")], ("m", 1): [waiter("a")]}
    assert shares.turn(able) is able
    assert shares.ordered(able["m", 0]) is able["m", 0]
