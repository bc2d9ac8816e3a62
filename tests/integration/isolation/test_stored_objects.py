"""Worlds, videos and responses of one tenant are invisible to another, and their quotas are separate."""

import secrets

import pytest

from mstar.server.openai import videos
from mstar.server.responses import store
from mstar.server.robotics import openpi, worlds
from tests.integration.isolation.two_keys import (
    ACTION,
    MSGPACK,
    create_response,
    create_video,
    create_world,
    finish_response,
    finish_video,
    packed,
    step_world,
)

WORLD_REQUESTS = [
    ("GET", "", {}),
    ("POST", "/step", {"action": ACTION}),
    ("POST", "/fork", {}),
    ("POST", "/reset", {}),
    ("DELETE", "", {}),
]
RESPONSE_REQUESTS = [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")]
VIDEO_REQUESTS = [("GET", ""), ("GET", "/content"), ("DELETE", "")]


# ---------------------------------------------------------------- worlds
@pytest.fixture(scope="module")
def world(alice):
    """A world of alice after one step."""
    path = create_world(alice)
    step_world(alice, path)
    yield path
    packed(alice, "DELETE", path)


@pytest.mark.parametrize(("method", "action", "body"), WORLD_REQUESTS, ids=["get", "step", "fork", "reset", "delete"])
def test_a_world_of_another_tenant_is_not_found_and_not_changed(alice, bob, world, method, action, body):
    status, error = packed(bob, method, world + action, **body)
    unknown = f"/v1/worlds/world_{secrets.token_hex(16)}"
    unknown_status, unknown_error = packed(bob, method, unknown + action, **body)
    assert status == unknown_status == 404
    assert str(error).replace(world, unknown).replace(world[11:], unknown[11:]) == str(unknown_error)
    assert packed(alice, "GET", world)[1]["steps"] == 1


def test_the_open_request_of_a_world_belongs_to_its_tenant(two_keys, alice, bob):
    path, recorder = create_world(alice), two_keys.models["every"].recorder
    step = openpi.pack({"action": ACTION})
    assert alice.post(f"{path}/step", content=step, headers=MSGPACK | {"X-Request-Id": "open-1"}).status_code == 200
    assert bob.post("/v1/requests/open-1/cancel").status_code == 404
    recorder.calls.clear()
    step_world(alice, path)  # in the request that is still open
    assert recorder.calls == ["alice"]
    assert packed(alice, "DELETE", path)[0] == 200


def test_a_full_quota_of_worlds_does_not_affect_another_tenant(alice, bob):
    paths = [*iter(lambda: create_world(alice), "")]
    other = create_world(bob)
    for path in paths:
        packed(alice, "DELETE", path)
    assert packed(bob, "DELETE", other)[0] == 200
    assert len(paths) <= worlds.MAX_WORLDS_PER_TENANT


# ---------------------------------------------------------------- videos
@pytest.fixture(scope="module")
def video(alice):
    """A completed video of alice."""
    path = create_video(alice, "a secret prompt")
    assert finish_video(alice, path) == "completed"
    yield path
    alice.delete(path)


@pytest.mark.parametrize(("method", "part"), VIDEO_REQUESTS, ids=["get", "content", "delete"])
def test_a_video_of_another_tenant_is_not_found_and_not_changed(alice, bob, video, method, part):
    unknown = f"/v1/videos/video_{secrets.token_hex(16)}"
    existing, missing = (bob.request(method, path + part) for path in (video, unknown))
    assert existing.status_code == missing.status_code == 404
    assert existing.text.replace(video[11:], unknown[11:]) == missing.text
    assert alice.get(f"{video}/content").headers["content-type"] == "video/mp4"


def test_the_list_has_only_own_videos(alice, bob, video):
    own, others = ([job["id"] for job in client.get("/v1/videos").json()["data"]] for client in (alice, bob))
    assert video[11:] in own
    assert not {*own} & {*others}


def test_many_videos_of_a_tenant_do_not_delay_another_tenant(alice, bob):
    paths = [*iter(lambda: create_video(alice, "slow", seconds=100), "")]
    try:
        other = create_video(bob)
        assert finish_video(bob, other) == "completed"
        assert alice.get(paths[-1]).json()["status"] == "queued"
        assert bob.delete(other).status_code == 200
    finally:
        for path in paths:
            alice.delete(path)
    assert len(paths) <= videos.MAX_JOBS_PER_TENANT


# ---------------------------------------------------------------- responses
@pytest.fixture(scope="module")
def response(alice):
    """A stored response of alice."""
    path = create_response(alice, "a secret input")
    yield path
    alice.delete(path)


@pytest.mark.parametrize(("method", "part"), RESPONSE_REQUESTS, ids=["get", "input items", "cancel", "delete"])
def test_a_response_of_another_tenant_is_not_found_and_not_changed(alice, bob, response, method, part):
    unknown = f"/v1/responses/resp_{secrets.token_hex(16)}"
    existing, missing = (bob.request(method, path + part) for path in (response, unknown))
    assert existing.status_code == missing.status_code == 404
    assert existing.text.replace(response[14:], unknown[14:]) == missing.text
    assert alice.get(response).json()["output"][0]["content"][0]["text"] == "a secret input"


def test_a_response_of_another_tenant_cannot_be_continued(two_keys, bob, response):
    chats = two_keys.models["every"].chats
    seen, errors = len(chats), []
    for response_id in (response[14:], f"resp_{secrets.token_hex(16)}"):
        body = {"model": "every", "input": "tell me", "previous_response_id": response_id}
        answer = bob.post("/v1/responses", json=body)
        assert answer.status_code == 400
        errors.append(answer.text.replace(response_id, ""))
    assert errors[0] == errors[1]
    assert len(chats) == seen


def test_many_responses_of_a_tenant_do_not_drop_those_of_another(alice, bob, response, monkeypatch):
    monkeypatch.setattr(store, "MAX_RESPONSES", 3)
    paths = [create_response(bob, f"number {number}") for number in range(5)]
    assert [bob.get(path).status_code for path in paths] == [404, 404, 200, 200, 200]
    assert alice.get(response).status_code == 200


def test_running_background_responses_of_a_tenant_do_not_stop_another(alice, bob):
    paths = [*iter(lambda: create_response(alice, "slow" + "x" * 400, background=True), "")]
    try:
        other = create_response(bob, background=True)
        assert finish_response(bob, other) == "completed"
        assert bob.post(f"{paths[-1]}/cancel").status_code == 404
    finally:
        for path in paths:
            alice.delete(path)
    assert len(paths) == store.MAX_RUNNING
