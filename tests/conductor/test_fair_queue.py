"""Weighted fair queue: order within and between flows."""

from mstar.conductor.fair_queue import FairQueue
from mstar.wire.messages import Submit, Value
from mstar.wire.slo import Slo


def submit(rid, tenant="", **slo):
    return Submit(rid, "m", Value(None), tenant, slo=Slo(**slo))


def pop_all(queue):
    order = []
    while queue:
        order.append(queue.heads()[0])
        queue.take(order[-1])
    return order


def test_a_flow_is_fifo():
    queue = FairQueue()
    for number in range(5):
        queue.add(submit(f"a{number}", "a"))
    queue.remove("a2")
    assert len(queue) == 4
    assert "a2" not in queue
    assert pop_all(queue) == ["a0", "a1", "a3", "a4"]


def test_a_tenant_that_floods_the_queue_does_not_delay_others():
    queue = FairQueue()
    for number in range(6):
        queue.add(submit(f"a{number}", "a"))
    queue.add(submit("b0", "b"))
    queue.add(submit("b1", "b"))
    assert pop_all(queue)[:4] == ["a0", "b0", "a1", "b1"]


def test_flows_are_served_by_weight():
    queue = FairQueue()
    for number in range(9):
        queue.add(submit(f"a{number}", "a", weight=3.0))
        queue.add(submit(f"b{number}", "b"))
    assert sum(rid.startswith("a") for rid in pop_all(queue)[:8]) == 6


def test_best_effort_requests_of_a_tenant_queue_separately():
    queue = FairQueue()
    queue.add(submit("stream", "a"))
    queue.add(submit("job", "a", best_effort=True))
    assert queue.heads() == ["stream", "job"]


def test_an_idle_flow_saves_up_no_credit():
    queue = FairQueue()
    for number in range(4):
        queue.add(submit(f"a{number}", "a"))
    for _ in range(3):
        queue.take(queue.heads()[0])
    queue.add(submit("b0", "b"))
    queue.add(submit("b1", "b"))
    assert pop_all(queue) == ["b0", "a3", "b1"]
