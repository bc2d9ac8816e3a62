"""Models that are unloaded and loaded, in real processes: no stream notices, and whoever comes next is served."""

import json
import os
import signal
import threading
import time

import httpx2
import pytest

from bench.scaling import MODEL
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from mstar.wire import messages as m
from tests.cli.test_serve import PARROT, start_server, wait_ready
from tests.integration.deployment_clients import Client, Oracle, add_frontend
from tests.integration.test_replicas import running_workers, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def oracle():
    return Oracle(load_model(str(MODEL)), [(key, 2 + key % 3) for key in range(6)])


class LoadingDeployment:
    """A deployment of which models rest and are woken."""

    def __init__(self, local, oracle):
        self.local = local
        self.front = add_frontend(local)
        self.oracle = oracle

    def unload(self, model="hum"):
        return self._send_command(lambda ticket: m.UnloadModel(ticket, model))

    def load(self, model="hum"):
        return self._send_command(lambda ticket: m.LoadModel(ticket, model))

    def _send_command(self, worded=m.ModelStatusQuery):
        return self.front.query_model_status(self.front.conductors["hum"], worded).result(5)

    @property
    def states(self):
        return self._send_command().states

    def ask(self, count, model="hum"):
        return [Client(self.front, model, self.oracle.requests[number % 6]) for number in range(count)]

    def check(self, clients):
        for number, client in enumerate(clients):
            self.oracle.judge(client.wait(), number)


@pytest.fixture
def deployment(oracle):
    with LocalLauncher({"hum": str(MODEL)}, {"hum": '[place]\ngenerator = ["a", "b"]'}) as local:
        yield LoadingDeployment(local, oracle)


def test_streams_finish_and_the_next_request_reloads_the_model(deployment, report):
    assert deployment.states == {"hum": "loaded"}
    clients = deployment.ask(40)
    wait_for(lambda: any(client.got for client in clients))
    told = deployment.rest()
    assert (told.states, told.why) == ({"hum": "unloaded"}, "")
    deployment.judge(clients)
    wait_for(lambda: not running_workers(deployment.local))
    assert deployment.states == {"hum": "unloaded"}
    again = deployment.ask(12)
    deployment.judge(again)
    wait_for(lambda: running_workers(deployment.local) == ["a", "b"])
    assert deployment.states == {"hum": "loaded"}
    assert [why for _, _, why in deployment.local.recent_exits if why != "not needed now"] == []
    report(f"40 streams were whole; the first of the next was served {again[0].seconds:.1f} s after it was asked")


def test_it_is_loaded_and_unloaded_twice(deployment):
    for _ in range(2):
        assert deployment.rest().states == {"hum": "unloaded"}
        assert deployment.rest().states == {"hum": "unloaded"}
        wait_for(lambda: not running_workers(deployment.local))
        assert deployment.wake().states == {"hum": "loading"}
        assert deployment.wake().states == {"hum": "loading"}
        wait_for(lambda: deployment.states == {"hum": "loaded"})
        deployment.judge(deployment.ask(6))


def test_it_is_unloaded_while_it_is_loaded(deployment):
    deployment.rest()
    wait_for(lambda: not running_workers(deployment.local))
    deployment.wake()
    wait_for(lambda: "starting" in deployment.local.health().values() or running_workers(deployment.local))
    assert deployment.rest().states == {"hum": "unloaded"}
    wait_for(lambda: {deployment.local.health()[name] for name in "ab"} == {"not needed now"})
    clients = deployment.ask(6)
    deployment.rest()  # they were there before
    deployment.judge(clients)
    wait_for(lambda: {deployment.local.health()[name] for name in "ab"} == {"not needed now"})
    deployment.judge(deployment.ask(6))


def test_requests_that_come_all_the_time_are_all_served(deployment):
    stop, clients = threading.Event(), []

    def come():
        while not stop.is_set():
            clients.extend(deployment.ask(1))
            time.sleep(0.3)

    coming = threading.Thread(target=come)
    coming.start()
    try:
        for number in range(8):
            (deployment.wake if number % 3 == 2 else deployment.rest)()
            time.sleep(0.4)
    finally:
        stop.set()
        coming.join()
    assert {client.wait().end.status for client in clients} == {"ok"}


def test_a_restarted_conductor_reloads_unloaded_models(deployment):
    deployment.rest()
    wait_for(lambda: not running_workers(deployment.local))
    os.kill(deployment.local.pid("conductor"), signal.SIGKILL)
    wait_for(lambda: running_workers(deployment.local) == ["a", "b"])
    wait_for(lambda: deployment.states == {"hum": "loaded"})
    deployment.judge(deployment.ask(6))


def test_one_of_two_models_is_unloaded(oracle):
    places = {
        "hum": '[place]\ngenerator = "a"',
        "drone": '[place]\ngenerator = "b"',
        "choir": '[place]\ngenerator = "b"',
    }
    with LocalLauncher(dict.fromkeys(places, str(MODEL)), places) as local:
        deployment = LoadingDeployment(local, oracle)
        others = deployment.ask(20, "drone")
        assert deployment.unload("hum").reason == ""
        assert "serve choir too" in deployment.unload("drone").reason
        wait_for(lambda: running_workers(local) == ["b"])
        assert deployment.states == {"hum": "unloaded", "drone": "loaded", "choir": "loaded"}
        deployment.check(others)
        deployment.check(deployment.ask(6, "choir"))
        deployment.check(deployment.ask(6, "hum"))
        wait_for(lambda: running_workers(local) == ["a", "b"])


# ---------------------------------------------------------------- over HTTP
def send_chat(client, text, **more):
    body = {"model": "bird", "messages": [{"role": "user", "content": text}], "stream": True} | more
    return client.stream("POST", "/v1/chat/completions", json=body, timeout=60)


def answer_text(answer):
    chunks = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert chunks[-1] == "[DONE]"
    return "".join(json.loads(one)["choices"][0]["delta"].get("content") or "" for one in chunks[:-1])


def test_a_server_unloads_and_loads(report):
    with start_server(f"{PARROT}:Parrot", "--name", "bird", "--api-key", "k") as (process, url):
        wait_ready(process)
        assert httpx2.post(f"{url}/v1/models/bird/unload").status_code == 401
        with httpx2.Client(base_url=url, headers={"Authorization": "Bearer k"}) as client:

            def state():
                return client.get("/v1/models").json()["data"][0]["state"]

            assert state() == client.get("/v1/models/bird").json()["state"] == "loaded"
            with send_chat(client, "hello") as answer:
                first = answer_text(answer)
            with send_chat(client, "slow" + "x" * 50) as answer:
                unloaded = client.post("/v1/models/bird/unload")
                assert (unloaded.status_code, unloaded.json()) == (200, {"model": "bird", "state": "unloaded"})
                assert answer_text(answer)
            assert state() == "unloaded"
            wait_for(lambda: 'mstar_workers{process="conductor"} 0.0' in client.get("/metrics").text)
            begun = time.monotonic()
            with send_chat(client, "hello") as answer:
                assert answer_text(answer) == first
            report(f"the first answer came {time.monotonic() - begun:.1f} s after it was asked for")
            assert state() == "loaded"
            assert client.post("/v1/models/bird/load").json() == {"model": "bird", "state": "loaded"}
            assert client.post("/v1/models/nobody/load").status_code == 404
