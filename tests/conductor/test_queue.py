"""Requests that wait to be taken on."""

from mstar.conductor.queue import Queue
from mstar.wire.messages import Submit, Value
from mstar.wire.pace import Pace


def submit(rid, tenant="", **pace):
    return Submit(rid, "m", Value(None), tenant, pace=Pace(**pace))


def drained(queue):
    found = []
    while queue:
        found.append(queue.heads()[0])
        queue.take(found[-1])
    return found


def test_one_key_in_its_own_order():
    queue = Queue()
    for number in range(5):
        queue.add(submit(f"a{number}", "a"))
    queue.remove("a2")
    assert len(queue) == 4
    assert "a2" not in queue
    assert drained(queue) == ["a0", "a1", "a3", "a4"]


def test_a_key_that_floods_does_not_keep_others_waiting():
    queue = Queue()
    for number in range(6):
        queue.add(submit(f"a{number}", "a"))
    queue.add(submit("b0", "b"))
    queue.add(submit("b1", "b"))
    assert drained(queue)[:4] == ["a0", "b0", "a1", "b1"]


def test_by_weight():
    queue = Queue()
    for number in range(9):
        queue.add(submit(f"a{number}", "a", weight=3.0))
        queue.add(submit(f"b{number}", "b"))
    assert sum(rid.startswith("a") for rid in drained(queue)[:8]) == 6


def test_jobs_of_a_key_wait_apart():
    queue = Queue()
    queue.add(submit("stream", "a"))
    queue.add(submit("job", "a", is_batch=True))
    assert queue.heads() == ["stream", "job"]
