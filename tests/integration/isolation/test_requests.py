"""Requests of one tenant are invisible to another: list, traces, cancel, events, metrics."""

import json
import threading

import pytest

from mstar.server.admin import recent_requests
from tests.integration.isolation.two_keys import (
    RunningChat,
    chat,
    create_item,
    open_realtime,
    send_event,
    wait_until,
)


def listed(client):
    return [record["id"] for record in client.get("/v1/requests").json()["data"]]


def text_count(client, request_id):
    (emission,) = client.get(f"/v1/requests/{request_id}/trace").json()["emissions"]
    return emission["count"]


@pytest.fixture(scope="module")
def private(alice):
    """Id of a finished request of alice."""
    chat(alice, "hello", "private-1")
    return "private-1"


# ---------------------------------------------------------------- list and traces
def test_the_list_has_only_own_requests(alice, bob, private):
    chat(bob, "hello", "bob-1")
    assert private in listed(alice)
    assert private not in listed(bob)
    assert "bob-1" in listed(bob)
    assert "bob-1" not in listed(alice)


@pytest.mark.parametrize("trace_format", ["json", "chrome"])
def test_a_trace_of_another_tenant_is_not_found(alice, bob, private, trace_format):
    path = f"/v1/requests/{private}/trace?format={trace_format}"
    assert alice.get(path).status_code == 200
    assert bob.get(path).status_code == 404


@pytest.mark.parametrize(("method", "action"), [("GET", "trace"), ("POST", "cancel")])
def test_an_existing_id_of_another_tenant_looks_like_an_unknown_id(bob, private, method, action):
    """The response must not reveal that the id exists."""
    existing = bob.request(method, f"/v1/requests/{private}/{action}")
    unknown = bob.request(method, f"/v1/requests/unknown-1/{action}")
    assert existing.status_code == unknown.status_code == 404
    assert existing.text.replace(private, "unknown-1") == unknown.text


def test_both_tenants_can_use_the_same_request_id(alice, bob):
    chat(alice, "12345", "same")
    chat(bob, "12", "same")
    assert (text_count(alice, "same"), text_count(bob, "same")) == (5, 2)
    chat(bob, "123", "same")  # replaces his record only
    assert (text_count(alice, "same"), text_count(bob, "same")) == (5, 3)


def test_the_response_to_a_reused_request_id_is_computed_for_its_own_tenant(two_keys, alice, bob):
    """A request id is no idempotency key: the other tenant does not get the response of the first request."""
    recorder = two_keys.models["every"].recorder
    assert chat(alice, "a secret", "reused") == "a secret"
    recorder.calls.clear()
    assert chat(bob, "other", "reused") == "other"
    assert {*recorder.calls} == {"bob"}


def test_an_idempotency_key_is_not_shared_between_tenants(two_keys, alice, bob):
    recorder = two_keys.models["every"].recorder
    for client, tenant, text in ((alice, "alice", "a secret"), (bob, "bob", "other")):
        recorder.calls.clear()
        body = {"model": "every", "messages": [{"role": "user", "content": text}]}
        response = client.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "one"})
        assert response.json()["choices"][0]["message"]["content"] == text
        assert {*recorder.calls} == {tenant}


def test_a_flood_of_requests_does_not_evict_the_records_of_another_tenant(two_keys, alice, bob, monkeypatch):
    monkeypatch.setattr(recent_requests, "MAX_REQUESTS", 4)
    monkeypatch.setattr(two_keys.state, "recent_requests", recent_requests.RecentRequests())
    chat(alice, "hello", "kept")
    for number in range(6):
        chat(bob, "x", f"flood-{number}")
    assert listed(bob) == ["flood-5", "flood-4", "flood-3", "flood-2"]
    assert listed(alice) == ["kept"]
    assert text_count(alice, "kept") == 5


# ---------------------------------------------------------------- cancel
def test_a_running_request_is_listed_and_cancelled_after_a_flood_of_its_own_tenant(two_keys, alice, monkeypatch):
    monkeypatch.setattr(recent_requests, "MAX_REQUESTS", 4)
    monkeypatch.setattr(two_keys.state, "recent_requests", recent_requests.RecentRequests())
    running = RunningChat(alice, "long-0", letters=2000)
    for number in range(6):
        chat(alice, "x", f"flood-{number}")
    assert "long-0" in listed(alice)
    assert alice.post("/v1/requests/long-0/cancel").json() == {"id": "long-0", "cancelled": True}
    assert not running.wait()


def test_a_running_request_cannot_be_cancelled_by_another_tenant(alice, bob):
    running = RunningChat(alice, "long-1", letters=60)
    assert bob.post("/v1/requests/long-1/cancel").status_code == 404
    assert bob.get("/v1/requests/long-1/trace").status_code == 404
    assert running.wait()


def test_a_cancel_with_a_shared_id_ends_only_the_own_request(alice, bob):
    first, second = RunningChat(alice, "shared-1", letters=200), RunningChat(bob, "shared-1", letters=4000)
    assert bob.post("/v1/requests/shared-1/cancel").json() == {"id": "shared-1", "cancelled": True}
    assert not second.wait()
    assert any("cancelled" in line for line in second.lines)
    assert first.wait()


def test_the_owner_cancels_all_choices_of_a_request(two_keys, alice):
    running = RunningChat(alice, "many-1", letters=4000, n=3)
    assert alice.post("/v1/requests/many-1/cancel").json()["cancelled"]
    assert not running.wait()
    assert two_keys.wait_until_idle(10)


def test_a_websocket_session_cannot_be_cancelled_by_another_tenant(two_keys, alice, bob):
    text = "slow" + "x" * 300
    with open_realtime(two_keys, "alice", request_id="session-1") as (socket, _):
        create_item(socket, text)
        send_event(socket, "response.create")
        wait_until(lambda: "session-1" in listed(alice))
        assert "session-1" not in listed(bob)
        assert bob.get("/v1/requests/session-1/trace").status_code == 404
        assert bob.post("/v1/requests/session-1/cancel").status_code == 404
        assert wait_for_response(socket)["status"] == "completed"


def test_the_owner_cancels_the_request_of_a_websocket_session(two_keys, alice):
    with open_realtime(two_keys, "alice", request_id="session-2") as (socket, _):
        create_item(socket, "slow" + "x" * 4000)
        send_event(socket, "response.create")
        wait_until(lambda: "session-2" in listed(alice))
        assert alice.post("/v1/requests/session-2/cancel").json()["cancelled"]
        assert wait_for_response(socket)["status"] != "completed"


def wait_for_response(socket):
    while (event := json.loads(socket.recv(10)))["type"] != "response.done":
        pass
    return event["response"]


# ---------------------------------------------------------------- events and metrics
def read_events(client, updates, ready, stop):
    with client.stream("GET", "/v1/events") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                updates.append(json.loads(line.removeprefix("data: ")))
                ready.set()
            if stop.is_set():
                return


def test_events_hide_the_requests_of_another_tenant(two_keys, alice, bob):
    stop, feeds, threads = threading.Event(), ([], []), []
    for client, updates in zip((alice, bob), feeds, strict=True):
        ready = threading.Event()
        threads.append(threading.Thread(target=read_events, args=(client, updates, ready, stop)))
        threads[-1].start()
        assert ready.wait(10)
    try:
        chat(alice, "slow" + "x" * 60, "private-events")
        own, others = [
            wait_until(lambda updates=updates: [view for update in updates for view in update["requests"]])
            for updates in feeds
        ]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert "private-events" in {view["id"] for view in own}
    assert {view["id"] for view in others} == {None}
    assert all(view["emitted"] == {} for view in others)
    assert "private-events" not in json.dumps(feeds[1])


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/openapi.json", "/ready", "/v1/models/every"])
def test_shared_pages_name_no_tenant_and_no_request(alice, bob, private, path):
    chat(alice, "a secret prompt", private)
    page = bob.get(path).text
    for secret in ("alice", "bob", private, "a secret prompt"):
        assert secret not in page
