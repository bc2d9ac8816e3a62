"""Walks that wait for workers: their groups, their order, and what is kept of them."""

from types import SimpleNamespace

from mstar.conductor.dispatch.waiting_walks import WaitingWalks
from mstar.conductor.requests import Request, WalkRun
from mstar.sim.models import SimRequest, planned_model
from mstar.wire import messages as m

STORY = planned_model("story", 1, 0)
PEER = m.Peer("w0", 0)


def make_request(rid, walk="theme", since=0.0, version=None, last_seen_attempt=-1):
    submit = m.Submit(rid, "story", m.Value(SimRequest(1, 1)), last_seen_attempt=last_seen_attempt)
    request = Request(submit, STORY, PEER, 0.0)
    request.weights_version = version
    return wait(request, walk, since)


def wait(request, walk, since):
    plan = STORY.plans.walks[walk]
    call = SimpleNamespace(name=walk, arguments=dict.fromkeys(plan.input_names))
    request.walk_run = WalkRun(call, plan, 0, waiting_since=since)
    return request


def rids(requests):
    return [request.rid for request in requests]


def add_all(*requests):
    waiting = WaitingWalks()
    for request in requests:
        waiting.add(request)
    return waiting


def test_requests_are_found_in_the_order_in_which_they_began_to_wait():
    waiting = add_all(make_request("a"), make_request("b", "begin"), make_request("c"), make_request("d", version=1))
    assert rids(waiting.find(lambda _: True)) == ["a", "b", "c", "d"]


def test_only_the_first_walk_of_a_group_is_checked_if_the_answer_is_no():
    requests = [make_request(f"{walk}{number}", walk) for number in range(100) for walk in ("theme", "begin")]
    checked = []
    assert add_all(*requests).find(checked.append) == []
    assert rids(checked) == ["theme0", "begin0"]


def test_walks_that_can_differ_in_their_workers_are_in_different_groups():
    alike = [make_request("a"), make_request("b")]
    others = [make_request("c", "begin"), make_request("d", version=1), make_request("e", last_seen_attempt=0)]
    checked = []
    add_all(*alike, *others).find(checked.append)
    assert rids(checked) == ["a", "c", "d", "e"]


def test_the_longest_wait_comes_first():
    old, new = make_request("old", since=1.0), make_request("new", since=2.0)
    waiting = add_all(old, new)
    waiting.add(old)  # again, because there is still no worker
    assert rids(waiting.find(lambda request: request.walk_run.waiting_since < 1.5)) == ["old"]


def test_a_request_that_waits_with_another_walk_keeps_its_place_in_the_order():
    first, second = make_request("first"), make_request("second", since=1.0)
    waiting = add_all(first, second)
    waiting.add(wait(first, "theme", since=2.0))
    assert rids(waiting.find(lambda _: True)) == ["first", "second"]
    assert rids(waiting.find(lambda request: request.walk_run.waiting_since < 1.5)) == ["second"]


def test_a_walk_that_is_over_is_not_found():
    interrupted, placed, waits = make_request("interrupted"), make_request("placed"), make_request("waits")
    waiting = add_all(interrupted, placed, waits)
    interrupted.walk_run = None
    placed.walk_run.seats = (PEER,)
    assert rids(waiting.find(lambda _: True)) == ["waits"]


def test_nothing_is_kept_of_a_removed_request():
    requests = [make_request("a"), make_request("b", "begin"), make_request("c")]
    waiting = add_all(*requests)
    requests[2].walk_run = None
    for rid in ("a", "b", "c", "unknown"):
        waiting.remove(rid)
    assert waiting.find(lambda _: True) == []
    assert (waiting._places, waiting._groups) == ({}, {})
