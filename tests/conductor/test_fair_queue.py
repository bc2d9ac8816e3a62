"""Requests that wait to be taken on."""

from mstar.conductor.fair_queue import FairQueue
from mstar.wire.messages import Submit, Value
from mstar.wire.slo import Slo


def submit(rid, tenant="", **pace):
    return Submit(rid, "m", Value(None), tenant, slo=Slo(**pace))


def pop_all(queue):
    found = []
    while queue:
        found.append(queue.heads()[0])
        queue.take(found[-1])
    return found


def test_one_key_in_its_own_order():
    queue = FairQueue()
    for number in range(5):
        queue.add(submit(f"a{number}", "a"))
    queue.remove("a2")
    assert len(queue) == 4
    assert "a2" not in queue
    assert pop_all(queue) == ["a0", "a1", "a3", "a4"]


def test_a_key_that_floods_does_not_keep_others_waiting():
    queue = FairQueue()
    for number in range(6):
        queue.add(submit(f"a{number}", "a"))
    queue.add(submit("b0", "b"))
    queue.add(submit("b1", "b"))
    assert pop_all(queue)[:4] == ["a0", "b0", "a1", "b1"]


def test_by_weight():
    queue = FairQueue()
    for number in range(9):
        queue.add(submit(f"a{number}", "a", weight=3.0))
        queue.add(submit(f"b{number}", "b"))
    assert sum(rid.startswith("a") for rid in pop_all(queue)[:8]) == 6


def test_best_effort_requests_of_a_key_queue_separately():
    queue = FairQueue()
    queue.add(submit("stream", "a"))
    queue.add(submit("job", "a", best_effort=True))
    assert queue.heads() == ["stream", "job"]
