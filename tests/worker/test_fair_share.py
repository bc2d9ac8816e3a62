"""What has no clock is shared by weight between keys."""

from types import SimpleNamespace as Thing

from mstar.wire.slo import Slo
from mstar.worker.scheduling.fair_share import FairShare


def ready_call(tenant, weight=1.0):
    return Thing(walk_run=Thing(start=Thing(tenant=tenant, slo=Slo(weight=weight))))


def run_rounds(able, rounds, shares=None):
    """Who is served when each wants something all the time, one at a time, and each takes a second."""
    shares, counts = shares or FairShare(), dict.fromkeys(able, 0)
    for _ in range(rounds):
        waiting = {("m", number): [ready_call(name, weight)] for number, (name, weight) in enumerate(able.items())}
        key = min(shares.next_tenant_calls(waiting))
        (chosen,) = waiting[key]
        shares.record_batch([chosen], 1.0)
        counts[chosen.walk_run.start.tenant] += 1
    return counts


def test_equal_keys_get_equal_parts():
    assert run_rounds({"a": 1.0, "b": 1.0, "c": 1.0}, 30) == {"a": 10, "b": 10, "c": 10}


def test_a_key_with_three_times_the_weight_gets_three_times_as_much():
    assert run_rounds({"a": 3.0, "b": 1.0}, 40) == {"a": 30, "b": 10}


def test_a_key_that_had_nothing_to_do_is_not_paid_back():
    shares = FairShare()
    run_rounds({"a": 1.0, "b": 1.0}, 2, shares)
    run_rounds({"a": 1.0}, 50, shares)
    assert run_rounds({"a": 1.0, "b": 1.0}, 20, shares)["a"] in (9, 10)


def test_with_one_key_nothing_changes():
    shares, able = FairShare(), {("m", 0): [ready_call("a")], ("m", 1): [ready_call("a")]}
    assert shares.next_tenant_calls(able) is able
    assert shares.order_by_usage(able["m", 0]) is able["m", 0]
