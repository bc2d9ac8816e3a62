"""Models that are unloaded and loaded, in real processes: no stream notices, and whoever comes next is served."""

import json
import os
import signal
import threading
import time

import httpx2
import pytest

from bench.scaling import MODEL
from mstar.launch.local import Local
from mstar.walk.load import load_model
from mstar.wire import messages as m
from tests.served.parts import Client, Oracle, front
from tests.served.test_replicas import up, wait_for
from tests.server.test_serve import PARROT, ready, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def oracle():
    return Oracle(load_model(str(MODEL)), [(key, 2 + key % 3) for key in range(6)])


class House:
    """A deployment of which models rest and are woken."""

    def __init__(self, local, oracle):
        self.local = local
        self.front = front(local)
        self.oracle = oracle

    def rest(self, model="hum"):
        return self._told(lambda ticket: m.Rest(ticket, model))

    def wake(self, model="hum"):
        return self._told(lambda ticket: m.Wake(ticket, model))

    def _told(self, worded=m.TakeStanding):
        return self.front.take_standing(self.front.conductors["hum"], worded).result(5)

    @property
    def states(self):
        return self._told().states

    def ask(self, count, model="hum"):
        return [Client(self.front, model, self.oracle.requests[number % 6]) for number in range(count)]

    def judge(self, clients):
        for number, client in enumerate(clients):
            self.oracle.judge(client.wait(), number)


@pytest.fixture
def house(oracle):
    with Local({"hum": str(MODEL)}, {"hum": '[place]\nthroat = ["a", "b"]'}) as local:
        yield House(local, oracle)


def test_streams_end_whole_and_the_next_ones_load_it_again(house, report):
    assert house.states == {"hum": "up"}
    clients = house.ask(40)
    wait_for(lambda: any(client.got for client in clients))
    told = house.rest()
    assert (told.states, told.why) == ({"hum": "resting"}, "")
    house.judge(clients)
    wait_for(lambda: not up(house.local))
    assert house.states == {"hum": "resting"}
    again = house.ask(12)
    house.judge(again)
    wait_for(lambda: up(house.local) == ["a", "b"])
    assert house.states == {"hum": "up"}
    assert [why for _, _, why in house.local.deaths if why != "not needed now"] == []
    report(f"40 streams were whole; the first of the next was served {again[0].seconds:.1f} s after it was asked")


def test_it_is_loaded_and_unloaded_twice(house):
    for _ in range(2):
        assert house.rest().states == {"hum": "resting"}
        assert house.rest().states == {"hum": "resting"}
        wait_for(lambda: not up(house.local))
        assert house.wake().states == {"hum": "loading"}
        assert house.wake().states == {"hum": "loading"}
        wait_for(lambda: house.states == {"hum": "up"})
        house.judge(house.ask(6))


def test_it_is_unloaded_while_it_is_loaded(house):
    house.rest()
    wait_for(lambda: not up(house.local))
    house.wake()
    wait_for(lambda: "starting" in house.local.health().values() or up(house.local))
    assert house.rest().states == {"hum": "resting"}
    wait_for(lambda: {house.local.health()[name] for name in "ab"} == {"not needed now"})
    clients = house.ask(6)
    house.rest()  # they were there before
    house.judge(clients)
    wait_for(lambda: {house.local.health()[name] for name in "ab"} == {"not needed now"})
    house.judge(house.ask(6))


def test_requests_that_come_all_the_time_are_all_served(house):
    stop, clients = threading.Event(), []

    def come():
        while not stop.is_set():
            clients.extend(house.ask(1))
            time.sleep(0.3)

    coming = threading.Thread(target=come)
    coming.start()
    try:
        for number in range(8):
            (house.wake if number % 3 == 2 else house.rest)()
            time.sleep(0.4)
    finally:
        stop.set()
        coming.join()
    assert {client.wait().end.status for client in clients} == {"ok"}


def test_a_new_conductor_loads_what_rests(house):
    house.rest()
    wait_for(lambda: not up(house.local))
    os.kill(house.local.pid("conductor"), signal.SIGKILL)
    wait_for(lambda: up(house.local) == ["a", "b"])
    wait_for(lambda: house.states == {"hum": "up"})
    house.judge(house.ask(6))


def test_one_of_two_models_rests(oracle):
    places = {"hum": '[place]\nthroat = "a"', "drone": '[place]\nthroat = "b"', "choir": '[place]\nthroat = "b"'}
    with Local(dict.fromkeys(places, str(MODEL)), places) as local:
        house = House(local, oracle)
        others = house.ask(20, "drone")
        assert house.rest("hum").why == ""
        assert "serve choir too" in house.rest("drone").why
        wait_for(lambda: up(local) == ["b"])
        assert house.states == {"hum": "resting", "drone": "up", "choir": "up"}
        house.judge(others)
        house.judge(house.ask(6, "choir"))
        house.judge(house.ask(6, "hum"))
        wait_for(lambda: up(local) == ["a", "b"])


# ---------------------------------------------------------------- over HTTP
def say(client, text, **more):
    body = {"model": "bird", "messages": [{"role": "user", "content": text}], "stream": True} | more
    return client.stream("POST", "/v1/chat/completions", json=body, timeout=60)


def words(answer):
    chunks = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert chunks[-1] == "[DONE]"
    return "".join(json.loads(one)["choices"][0]["delta"].get("content") or "" for one in chunks[:-1])


def test_a_server_unloads_and_loads(report):
    with served(f"{PARROT}:Parrot", "--name", "bird", "--api-key", "k") as (process, url):
        ready(process)
        assert httpx2.post(f"{url}/v1/models/bird/unload").status_code == 401
        with httpx2.Client(base_url=url, headers={"Authorization": "Bearer k"}) as client:

            def state():
                return client.get("/v1/models").json()["data"][0]["state"]

            assert state() == client.get("/v1/models/bird").json()["state"] == "up"
            with say(client, "hello") as answer:
                first = words(answer)
            with say(client, "slow" + "x" * 50) as answer:
                unloaded = client.post("/v1/models/bird/unload")
                assert (unloaded.status_code, unloaded.json()) == (200, {"model": "bird", "state": "resting"})
                assert words(answer)
            assert state() == "resting"
            wait_for(lambda: 'mstar_held{process="conductor",what="workers"} 0.0' in client.get("/metrics").text)
            begun = time.monotonic()
            with say(client, "hello") as answer:
                assert words(answer) == first
            report(f"the first answer came {time.monotonic() - begun:.1f} s after it was asked for")
            assert state() == "up"
            assert client.post("/v1/models/bird/load").json() == {"model": "bird", "state": "up"}
            assert client.post("/v1/models/nobody/load").status_code == 404
