"""Live feed: subscribers see requests start, move and end; the model graph maps each call to a box."""

import asyncio
import json
import re
import threading
import time
from contextlib import contextmanager

import pytest

from mstar.server.access.api_keys import ApiKeys
from mstar.server.admin import events
from mstar.server.admin.graphs import record_warmup
from mstar.server.admin.live_feed import MAX_QUEUED_UPDATES, Subscriber
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.admin.snapshot import ClusterSnapshot, RequestView, SnapshotDelta
from mstar.server.request_context import RequestContext
from mstar.wire.activity import RequestStatus
from tests.server.toy_server import chat_body, run_toy_server

CHAT = "/v1/chat/completions"


@contextmanager
def subscribe(client):
    """Updates that arrive while the block runs: a list that grows."""
    updates, begun, ends = [], threading.Event(), threading.Event()

    def read():
        with client.stream("GET", "/v1/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    updates.append(json.loads(line.removeprefix("data: ")))
                    begun.set()
                if ends.is_set():
                    return

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(5)
    try:
        yield updates
    finally:
        ends.set()
        thread.join()


def wait_until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert result
    return result


def test_a_request_appears_moves_and_ends(server):
    with server.client() as client, subscribe(client) as updates, server.client() as asking:
        asking.post(CHAT, json=chat_body("slow and quite long hello"), headers={"X-Request-Id": "dotted"})
        seen = wait_until(lambda: [one for tick in updates for one in tick["requests"] if one["id"] == "dotted"])
        wait_until(lambda: [tick for tick in updates if seen[0]["rid"] in tick["ended"]])
        graph = asking.get("/v1/models/parrot/graph").json()
        first = updates[0]
    assert first["full"]
    assert first["phase"]["name"] == "ready"
    assert [one["name"] for one in first["workers"]] == ["local"]
    placed = [one for one in seen if one["at"]]
    how = {(one["model"], one["state"], one["walk"], one["attempt"]) for one in placed}
    assert how == {("parrot", "running", "say", 1)}
    counts = [one["emitted"].get("Text", 0) for one in seen]
    assert counts == sorted(counts)
    assert counts[-1] > 1
    ops = [op for tick in updates for op in tick["ops"] if op["calls"]]
    assert {(op["model"], op["walk"], op["worker"]) for op in ops} == {("parrot", "say", "local")}
    (walk,) = [one for one in graph["walks"] if one["name"] == "say"]
    ((worker, at),) = placed[0]["at"]
    titles = {box["id"]: box["title"] for box in walk["picture"]["boxes"]}
    assert (worker, titles[walk["calls"][at]]) == ("local", "letters.letter")


def test_workers_are_not_polled_without_subscribers(server):
    def live_stats():
        actors = server.launcher.actor_loop._actors.values()
        return [actor._core.op_stats.live_stats for actor in actors if hasattr(actor, "_engine_thread")]

    with server.client() as client, subscribe(client):
        wait_until(lambda: any(map(bool, live_stats())))
    wait_until(lambda: server.state.live_feed._task is None)
    wait_until(lambda: not any(map(bool, live_stats())))


def test_another_tenant_sees_an_anonymous_request():
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server, server.client("a") as alice, server.client("b") as bob:
        with server.client() as anonymous:
            assert anonymous.get("/v1/events").status_code == 401
        with subscribe(bob) as updates:
            alice.post(CHAT, json=chat_body("slow hello, this is private"), headers={"X-Request-Id": "mine"})
            seen = wait_until(lambda: [one for tick in updates for one in tick["requests"]])
    assert {one["id"] for one in seen} == {None}
    assert {json.dumps(one["emitted"]) for one in seen} == {"{}"}
    assert "mine" not in json.dumps(updates)


def test_a_tenant_has_a_limited_number_of_event_streams(monkeypatch):
    monkeypatch.setattr(events, "MAX_SUBSCRIBERS", 2)
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server, server.client("a") as alice, server.client("b") as bob:
        with subscribe(alice), subscribe(alice):
            refused = alice.get("/v1/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
            with subscribe(bob):
                pass
        wait_until(lambda: server.state.live_feed._task is None)
        with subscribe(alice):
            pass


def test_a_slow_subscriber_gets_a_full_snapshot():
    snapshot, subscriber = ClusterSnapshot(), Subscriber("")
    one = snapshot.requests["r"] = RequestView(RequestStatus("r", "m", "running", "w", 0, 1, ("a",), 0.1), "conductor")
    one.refresh("", None)
    for _ in range(MAX_QUEUED_UPDATES + 2):
        subscriber.publish(SnapshotDelta({}, [], [], []), snapshot)
    waiting = [subscriber.queue.get_nowait() for _ in range(MAX_QUEUED_UPDATES)]
    assert [one["full"] for one in waiting] == [True, False, False, False]
    subscriber.publish(SnapshotDelta({}, [], [], []), snapshot)
    again = subscriber.queue.get_nowait()
    assert again["full"]
    assert [one["rid"] for one in again["requests"]] == ["r"]


def test_a_request_stays_with_its_tenant_until_the_conductor_has_ended_it():
    view = RequestView(RequestStatus("r", "m", "running", "w", 0, 1, ("a",), 0.1), "conductor")
    view.refresh("alice", RequestRecord(RequestContext("mine"), ""))
    assert not view.refresh(None, None)  # the response is complete: its record is no longer in progress
    (shown,) = SnapshotDelta({}, [view], [], []).for_tenant("alice")["requests"]
    (hidden,) = SnapshotDelta({}, [view], [], []).for_tenant("bob")["requests"]
    assert (shown["id"], hidden["id"]) == ("mine", None)


@pytest.mark.parametrize("model", ["parrot", "vectors", "mixer"])
def test_a_graph_has_placement_and_costs(server, model):
    with server.client() as client:
        client.post(CHAT, json=chat_body("hello"))
        graph = client.get(f"/v1/models/{model}/graph").json()
        missing = client.get("/v1/models/absent/graph")
    assert graph["workers"] == ["local"]
    assert graph["cut_edges"] == []
    assert "nothing crosses" in graph["text"]
    for walk in graph["walks"]:
        boxes = {box["id"]: box for box in walk["picture"]["boxes"]}
        assert all(boxes[call]["shape"] == "op" for call in walk["calls"])
        assert len(walk["calls"]) == sum(box["shape"] == "op" for box in boxes.values())
    ops = {op["op"]: op for op in graph["ops"]}
    assert all(re.fullmatch(r"toy_models\.py:\d+", op["source"]) for op in ops.values())
    (process,) = graph["processes"]
    assert process["worker"] == "local"
    assert {"parrot.letters", "vectors.measure", "mixer.desk", "free.letters"} == set(process["components"])
    if model == "parrot":
        assert ops["letters.letter"]["calls"] >= 5
        assert ops["letters.letter"]["batch"] >= 1
    assert missing.status_code == 404


def test_a_walk_is_used_once_a_client_has_used_it():
    with run_toy_server() as server, server.client() as client:

        def used():
            server.state.metrics.refreshed_at = 0.0  # not the statistics of a moment ago
            return [walk["name"] for walk in client.get("/v1/models/parrot/graph").json()["walks"] if walk["is_used"]]

        assert used() == []
        client.post(CHAT, json=chat_body("hello"))
        assert used() == ["say"]
        asyncio.run_coroutine_threadsafe(record_warmup(server.state), server.loop).result(5)
        assert used() == []  # what ran so far was the warm-up
        client.post(CHAT, json=chat_body("hello"))
        assert used() == ["say"]
