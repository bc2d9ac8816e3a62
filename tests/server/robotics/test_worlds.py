"""Worlds go on where they were, can be forked and begun again, and end; what is imagined is what the model computes."""

import asyncio

import numpy as np
import pytest

from mstar.requests import RolloutRequest
from mstar.server.access.api_keys import ApiKeys
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
    """Somebody who imagines."""

    def __init__(self, model_server, key="mine", model="dreamer"):
        self._http = model_server.client(key, **HEADERS)
        self._model = model
        self._worlds = []

    def request(self, method, path, **body):
        content = openpi.pack(body) if method == "POST" else None
        answer = self._http.request(method, path, content=content)
        is_packed = answer.headers["content-type"] == "application/msgpack"
        return answer.status_code, openpi.unpack(answer.content) if is_packed else answer.json()

    def create(self, **more):
        status, world = self.request("POST", "/v1/worlds", model=self._model, observation={"frames": FRAMES}, **more)
        assert status == 201
        self._worlds.append(f"/v1/worlds/{world['id']}")
        return self._worlds[-1]

    def delete_all(self):
        """Delete all that it began."""
        for world in self._worlds:
            self.request("DELETE", world)

    def step(self, world, action, **more):
        return self.request("POST", f"{world}/step", action=action, **more)


@pytest.fixture(params=["dreamer", "sleeper"])
def client(model_server, request):
    """Of a model that is asked for all actions again at each step, and of one that goes on."""
    client = Client(model_server, model=request.param)
    yield client
    client.delete_all()
    client._http.close()


def expected(actions):
    """What the model computes eagerly for each action."""
    outcome = ToyWorldModel().run(RolloutRequest({"frames": FRAMES}, tuple(actions)))
    return [emission.value for emission in outcome.emissions]


def test_each_step_shows_what_the_model_imagines(client, model_server):
    world = client.create()
    for number, (action, wanted) in enumerate(zip(ACTIONS, expected(ACTIONS), strict=True)):
        status, shown = client.step(world, action, step=number)
        assert status == 200
        assert shown["step"] == number
        assert np.array_equal(shown["emissions"]["Latents"], wanted)
    assert client.request("GET", world)[1]["steps"] == len(ACTIONS)
    client.delete_all()
    assert model_server.is_idle()


def test_a_fork_goes_its_own_way(client):
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


def test_a_reset_goes_back_to_the_beginning(client):
    world = client.create()
    client.step(world, ACTIONS[0])
    assert client.request("POST", f"{world}/reset")[1]["steps"] == 0
    _, shown = client.step(world, ACTIONS[3])
    assert np.array_equal(shown["emissions"]["Latents"], expected(ACTIONS[3:4])[0])


def test_a_world_can_be_begun_again_with_its_actions(client):
    world = client.create(actions=list(ACTIONS[:3]))
    _, shown = client.step(world, ACTIONS[3], step=3)
    assert np.array_equal(shown["emissions"]["Latents"], expected(ACTIONS[:4])[3])


def test_an_answer_that_was_lost_can_be_had_again(client):
    world = client.create()
    first = client.step(world, ACTIONS[0], step=0)[1]
    again = client.step(world, ACTIONS[0], step=0)[1]
    assert np.array_equal(first["emissions"]["Latents"], again["emissions"]["Latents"])
    assert client.request("GET", world)[1]["steps"] == 1
    status, refused = client.step(world, ACTIONS[0], step=5)
    assert (status, refused["error"]["code"]) == (409, "wrong_step")


def test_a_step_that_fails_is_not_a_step(client, model_server):
    world = client.create()
    client.step(world, ACTIONS[0])
    status, refused = client.step(world, np.zeros(6, np.float32))
    assert (status, refused["error"]["code"]) == (500, "model_error")
    assert client.request("GET", world)[1]["steps"] == 1
    assert np.array_equal(client.step(world, ACTIONS[1])[1]["emissions"]["Latents"], expected(ACTIONS[:2])[1])
    client.delete_all()
    assert model_server.is_idle()


@pytest.mark.parametrize("action", [None, np.full(7, np.nan, np.float32), float("inf")])
def test_an_action_is_needed_and_finite(client, action):
    assert client.step(client.create(), action)[0] == 422


def test_worlds_are_their_owners_and_end(client, model_server):
    world, other = client.create(), Client(model_server, "theirs")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/step"), ("POST", "/fork"), ("POST", "/reset")):
        assert other.request(method, world + path)[0] == 404
    other._http.close()
    assert client.request("DELETE", world)[1]["deleted"]
    assert client.request("GET", world)[0] == 404


def test_there_are_only_so_many_and_so_long(model_server, monkeypatch):
    monkeypatch.setattr(worlds, "MAX_STEPS", 2)
    client = Client(model_server, "theirs")
    status, refused = client.request(
        "POST", "/v1/worlds", model="dreamer", observation={"frames": FRAMES}, actions=list(ACTIONS)
    )
    assert (status, refused["error"]["code"]) == (422, "too_many_steps")
    for _ in range(worlds.MAX_WORLDS_PER_TENANT):
        client.create()
    answer = client._http.post("/v1/worlds", content=openpi.pack({"model": "dreamer", "observation": {}}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")
    assert int(answer.headers["retry-after"]) > 0
    client.delete_all()
    client._http.close()


def test_a_world_does_not_grow_without_end(client, monkeypatch):
    monkeypatch.setattr(worlds, "MAX_WORLD_BYTES", 8_000)
    world = client.create()
    answers = [client.step(world, np.zeros(7, np.float32))[0] for _ in range(30)]
    assert answers[0] == 200
    assert answers[-1] == 413


def test_what_nobody_comes_back_for_is_dropped():
    async def keep():
        dropped = []
        shelf = TtlStore("toy", 2, 0.05, dropped.append)
        first, second = shelf.put("me", lambda name: name), shelf.put("me", lambda name: name)
        await asyncio.sleep(0.03)
        shelf.touch(second)
        await asyncio.sleep(0.04)
        assert (dropped, shelf.items_of("me")) == ([first], [second])
        await asyncio.sleep(0.06)
        assert dropped == [first, second]

    asyncio.run(keep())


def test_a_model_without_worlds_says_what_it_serves(client):
    status, refused = client.request("POST", "/v1/worlds", model="arm", observation={})
    assert status == 404
    assert "/v1/actions" in refused["error"]["message"]


def test_a_multi_turn_model_computes_each_step_once(model_server):
    client = Client(model_server, model="sleeper")
    world, computed = client.create(), []
    for action in ACTIONS:
        before = model_server.op_calls("predictor.advance")
        client.step(world, action)
        computed.append(model_server.op_calls("predictor.advance") - before)
    assert computed == [1] * len(ACTIONS)
    client.delete_all()
    client._http.close()
