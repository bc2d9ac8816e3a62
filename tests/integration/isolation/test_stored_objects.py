"""Worlds and videos of one tenant are invisible to another, and their quotas are separate."""

import secrets

import pytest

from mstar.server.openai import videos
from mstar.server.robotics import openpi, worlds
from tests.integration.isolation.two_keys import (
    ACTION,
    MSGPACK,
    create_video,
    create_world,
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
