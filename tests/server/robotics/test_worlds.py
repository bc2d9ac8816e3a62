"""Tests of world-model rollouts: steps, forks, resets, retries, ownership and limits."""

import asyncio

import numpy as np
import pytest

from mstar.requests import RolloutRequest
from mstar.server.access.api_keys import ApiKeys
from mstar.server.errors import ApiError
from mstar.server.robotics import openpi, worlds
from mstar.server.robotics.ttl_store import TtlStore
from tests.server.model_server import serve_models
from tests.server.toy_robot_models import Arm, MultiTurnWorldModel, ToyWorldModel

HEADERS = {"Content-Type": "application/msgpack"}
FRAMES = np.random.default_rng(0).integers(0, 255, (2, 3, 16, 16)).astype(np.float32)
ACTIONS = np.random.default_rng(1).integers(-9, 9, (6, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def model_server():
    with serve_models(
        {"dreamer": ToyWorldModel(), "sleeper": MultiTurnWorldModel(), "arm": Arm()}, ApiKeys(["mine", "theirs"])
    ) as started:
        yield started


class Client:
    """Client of the worlds endpoints that speaks msgpack."""

    def __init__(self, model_server, key="mine", model="dreamer"):
        self._http = model_server.client(key, **HEADERS)
        self._model = model
        self._worlds = []

    def request(self, method, path, **body):
        content = openpi.pack(body) if method == "POST" else None
        response = self._http.request(method, path, content=content)
        is_packed = response.headers["content-type"] == "application/msgpack"
        return response.status_code, openpi.unpack(response.content) if is_packed else response.json()

    def create(self, **fields):
        status, world = self.request("POST", "/v1/worlds", model=self._model, observation={"frames": FRAMES}, **fields)
        assert status == 201
        self._worlds.append(f"/v1/worlds/{world['id']}")
        return self._worlds[-1]

    def delete_all(self):
        """Delete all worlds that this client created."""
        for world in self._worlds:
            self.request("DELETE", world)

    def step(self, world, action, **fields):
        return self.request("POST", f"{world}/step", action=action, **fields)


@pytest.fixture(params=["dreamer", "sleeper"])
def client(model_server, request):
    """Client of a model that replays all actions at each step, and of a multi-turn model."""
    client = Client(model_server, model=request.param)
    yield client
    client.delete_all()
    client._http.close()


def expected(actions):
    """Outputs of an eager run of the model, one per action."""
    outcome = ToyWorldModel().run(RolloutRequest({"frames": FRAMES}, tuple(actions)))
    return [emission.value for emission in outcome.emissions]


def test_each_step_returns_the_output_of_the_model(client, model_server):
    world = client.create()
    for number, (action, latents) in enumerate(zip(ACTIONS, expected(ACTIONS), strict=True)):
        status, step = client.step(world, action, step=number)
        assert status == 200
        assert step["step"] == number
        assert np.array_equal(step["emissions"]["Latents"], latents)
    assert client.request("GET", world)[1]["steps"] == len(ACTIONS)
    client.delete_all()
    assert model_server.is_idle()


def test_a_fork_is_independent(client):
    world = client.create()
    client.step(world, ACTIONS[0])
    _, forked = client.request("POST", f"{world}/fork")
    other = f"/v1/worlds/{forked['id']}"
    client._worlds.append(other)
    assert forked["steps"] == 1
    _, left = client.step(world, ACTIONS[1])
    _, right = client.step(other, ACTIONS[2])
    assert np.array_equal(left["emissions"]["Latents"], expected(ACTIONS[:2])[1])
    assert np.array_equal(right["emissions"]["Latents"], expected(ACTIONS[[0, 2]])[1])


def test_a_reset_removes_all_actions(client):
    world = client.create()
    client.step(world, ACTIONS[0])
    assert client.request("POST", f"{world}/reset")[1]["steps"] == 0
    _, step = client.step(world, ACTIONS[3])
    assert np.array_equal(step["emissions"]["Latents"], expected(ACTIONS[3:4])[0])


def test_a_world_can_be_recreated_from_its_actions(client):
    world = client.create(actions=list(ACTIONS[:3]))
    _, step = client.step(world, ACTIONS[3], step=3)
    assert np.array_equal(step["emissions"]["Latents"], expected(ACTIONS[:4])[3])


def test_a_step_can_be_retried(client):
    world = client.create()
    first = client.step(world, ACTIONS[0], step=0)[1]
    retried = client.step(world, ACTIONS[0], step=0)[1]
    assert np.array_equal(first["emissions"]["Latents"], retried["emissions"]["Latents"])
    assert client.request("GET", world)[1]["steps"] == 1
    status, body = client.step(world, ACTIONS[0], step=5)
    assert (status, body["error"]["code"]) == (409, "wrong_step")


def test_a_failed_step_does_not_change_the_world(client, model_server):
    world = client.create()
    client.step(world, ACTIONS[0])
    status, body = client.step(world, np.zeros(6, np.float32))
    assert (status, body["error"]["code"]) == (500, "model_error")
    assert client.request("GET", world)[1]["steps"] == 1
    assert np.array_equal(client.step(world, ACTIONS[1])[1]["emissions"]["Latents"], expected(ACTIONS[:2])[1])
    client.delete_all()
    assert model_server.is_idle()


@pytest.mark.parametrize("action", [None, np.full(7, np.nan, np.float32), float("inf")])
def test_a_missing_or_infinite_action_is_rejected(client, action):
    assert client.step(client.create(), action)[0] == 422


def test_worlds_are_visible_to_their_owner_only_and_can_be_deleted(client, model_server):
    world, other = client.create(), Client(model_server, "theirs")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/step"), ("POST", "/fork"), ("POST", "/reset")):
        assert other.request(method, world + path)[0] == 404
    other._http.close()
    assert client.request("DELETE", world)[1]["deleted"]
    assert client.request("GET", world)[0] == 404


def test_steps_and_worlds_are_limited(model_server, monkeypatch):
    monkeypatch.setattr(worlds, "MAX_STEPS", 2)
    client = Client(model_server, "theirs")
    status, body = client.request(
        "POST", "/v1/worlds", model="dreamer", observation={"frames": FRAMES}, actions=list(ACTIONS)
    )
    assert (status, body["error"]["code"]) == (422, "too_many_steps")
    for _ in range(worlds.MAX_WORLDS_PER_TENANT):
        client.create()
    response = client._http.post("/v1/worlds", content=openpi.pack({"model": "dreamer", "observation": {}}))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "quota_exceeded")
    assert int(response.headers["retry-after"]) > 0
    client.delete_all()
    client._http.close()


def test_the_bytes_of_a_world_are_limited(client, monkeypatch):
    monkeypatch.setattr(worlds, "MAX_WORLD_BYTES", 8_000)
    world = client.create()
    statuses = [client.step(world, np.zeros(7, np.float32))[0] for _ in range(30)]
    assert statuses[0] == 200
    assert statuses[-1] == 413


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test sets."""

    now = 0.0

    def time(self):
        return self.now

    async def advance(self, seconds):
        """Advance the clock and run the timers that are due."""
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


def run_with_manual_clock(test):
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(test(runner.get_loop()))


def test_items_of_a_ttl_store_expire():
    async def run(loop):
        removed = []
        store = TtlStore("toy", 2, 50.0, removed.append)
        first, second = store.put("me", lambda item_id: item_id), store.put("me", lambda item_id: item_id)
        await loop.advance(30.0)
        store.touch(second)
        await loop.advance(19.9)
        assert removed == []
        await loop.advance(0.2)
        assert (removed, store.items_of("me")) == ([first], [second])
        await loop.advance(29.8)
        assert removed == [first]
        await loop.advance(0.2)
        assert (removed, store.items_of("me")) == ([first, second], [])

    run_with_manual_clock(run)


def test_a_full_ttl_store_says_when_the_next_item_expires():
    async def run(loop):
        store = TtlStore("toy", 1, 50.0, lambda _: None)
        store.put("me", lambda item_id: item_id)
        await loop.advance(20.0)
        with pytest.raises(ApiError, match="retry after 30 s") as caught:
            store.put("me", lambda item_id: item_id)
        assert caught.value.retry_after == 30.0
        store.put("other", lambda item_id: item_id)

    run_with_manual_clock(run)


def test_a_model_without_rollouts_names_its_endpoints(client):
    status, body = client.request("POST", "/v1/worlds", model="arm", observation={})
    assert status == 404
    assert "/v1/actions" in body["error"]["message"]


def test_a_multi_turn_model_computes_each_step_once(model_server):
    client = Client(model_server, model="sleeper")
    world, calls_per_step = client.create(), []
    for action in ACTIONS:
        before = model_server.op_calls("predictor.advance")
        client.step(world, action)
        calls_per_step.append(model_server.op_calls("predictor.advance") - before)
    assert calls_per_step == [1] * len(ACTIONS)
    client.delete_all()
    client._http.close()
