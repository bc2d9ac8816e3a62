"""Weighted fair share of engine time between tenants."""

from types import SimpleNamespace as Thing

from mstar.wire.slo import Slo
from mstar.worker.scheduling.fair_share import FairShare


def ready_call(tenant, weight=1.0):
    return Thing(walk_run=Thing(start=Thing(tenant=tenant, slo=Slo(weight=weight))))


def run_rounds(tenants, rounds, shares=None):
    """Count the served calls per tenant when each always has one ready call of one second."""
    shares, counts = shares or FairShare(), dict.fromkeys(tenants, 0)
    for _ in range(rounds):
        waiting = {("m", number): [ready_call(name, weight)] for number, (name, weight) in enumerate(tenants.items())}
        key = min(shares.next_tenant_calls(waiting))
        (chosen,) = waiting[key]
        shares.record_batch([chosen], 1.0)
        counts[chosen.walk_run.start.tenant] += 1
    return counts


def test_equal_weights_get_equal_shares():
    assert run_rounds({"a": 1.0, "b": 1.0, "c": 1.0}, 30) == {"a": 10, "b": 10, "c": 10}


def test_three_times_the_weight_gets_three_times_the_share():
    assert run_rounds({"a": 3.0, "b": 1.0}, 40) == {"a": 30, "b": 10}


def test_an_idle_tenant_collects_no_credit():
    shares = FairShare()
    run_rounds({"a": 1.0, "b": 1.0}, 2, shares)
    run_rounds({"a": 1.0}, 50, shares)
    assert run_rounds({"a": 1.0, "b": 1.0}, 20, shares)["a"] in (9, 10)


def test_a_single_tenant_is_not_tracked():
    shares, tenants = FairShare(), {("m", 0): [ready_call("a")], ("m", 1): [ready_call("a")]}
    assert shares.next_tenant_calls(tenants) is tenants
    assert shares.order_by_usage(tenants["m", 0]) is tenants["m", 0]
