"""Unloading and loading of models in real processes, while requests run."""

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
    """A deployment whose models are loaded and unloaded."""

    def __init__(self, local, oracle):
        self.local = local
        self.front = add_frontend(local)
        self.oracle = oracle

    def unload(self, model="hum"):
        return self._send_command(lambda correlation_id: m.UnloadModel(correlation_id, model))

    def load(self, model="hum"):
        return self._send_command(lambda correlation_id: m.LoadModel(correlation_id, model))

    def _send_command(self, make_query=m.ModelStatusQuery):
        return self.front.query_model_status(self.front.conductors["hum"], make_query).result(5)

    @property
    def states(self):
        return self._send_command().states

    def send(self, count, model="hum"):
        return [Client(self.front, model, self.oracle.requests[number % 6]) for number in range(count)]

    def check(self, clients):
        for number, client in enumerate(clients):
            self.oracle.check(client.wait(), number)


@pytest.fixture
def deployment(oracle):
    with LocalLauncher({"hum": str(MODEL)}, {"hum": '[place]\ngenerator = ["a", "b"]'}) as local:
        yield LoadingDeployment(local, oracle)


def test_streams_finish_and_the_next_request_reloads_the_model(deployment, report):
    assert deployment.states == {"hum": "loaded"}
    clients = deployment.send(40)
    wait_for(lambda: any(client.output_counts for client in clients))
    status = deployment.unload()
    assert (status.states, status.reason) == ({"hum": "unloaded"}, "")
    deployment.check(clients)
    wait_for(lambda: not running_workers(deployment.local))
    assert deployment.states == {"hum": "unloaded"}
    again = deployment.send(12)
    deployment.check(again)
    wait_for(lambda: running_workers(deployment.local) == ["a", "b"])
    assert deployment.states == {"hum": "loaded"}
    assert [reason for _, _, reason in deployment.local.recent_exits if reason != "not needed now"] == []
    report(f"40 streams were whole; the first of the next was served {again[0].duration_s:.1f} s after its submission")


@pytest.mark.nightly
def test_load_and_unload_are_idempotent(deployment):
    for _ in range(2):
        assert deployment.unload().states == {"hum": "unloaded"}
        assert deployment.unload().states == {"hum": "unloaded"}
        wait_for(lambda: not running_workers(deployment.local))
        assert deployment.load().states == {"hum": "loading"}
        assert deployment.load().states == {"hum": "loading"}
        wait_for(lambda: deployment.states == {"hum": "loaded"})
        deployment.check(deployment.send(6))


@pytest.mark.nightly
def test_a_model_is_unloaded_while_it_loads(deployment):
    deployment.unload()
    wait_for(lambda: not running_workers(deployment.local))
    deployment.load()
    wait_for(lambda: "starting" in deployment.local.health().values() or running_workers(deployment.local))
    assert deployment.unload().states == {"hum": "unloaded"}
    wait_for(lambda: {deployment.local.health()[name] for name in "ab"} == {"not needed now"})
    clients = deployment.send(6)
    deployment.unload()  # submitted before the unload
    deployment.check(clients)
    wait_for(lambda: {deployment.local.health()[name] for name in "ab"} == {"not needed now"})
    deployment.check(deployment.send(6))


@pytest.mark.nightly
def test_requests_during_loads_and_unloads_are_all_served(deployment):
    stop, clients = threading.Event(), []

    def submit():
        while not stop.is_set():
            clients.extend(deployment.send(1))
            time.sleep(0.3)

    submitter = threading.Thread(target=submit)
    submitter.start()
    try:
        for number in range(8):
            (deployment.load if number % 3 == 2 else deployment.unload)()
            time.sleep(0.4)
    finally:
        stop.set()
        submitter.join()
    assert {client.wait().end.status for client in clients} == {"ok"}


def test_a_restarted_conductor_reloads_unloaded_models(deployment):
    deployment.unload()
    wait_for(lambda: not running_workers(deployment.local))
    os.kill(deployment.local.pid("conductor"), signal.SIGKILL)
    wait_for(lambda: running_workers(deployment.local) == ["a", "b"])
    wait_for(lambda: deployment.states == {"hum": "loaded"})
    deployment.check(deployment.send(6))


@pytest.mark.nightly
def test_one_of_two_models_is_unloaded(oracle):
    places = {
        "hum": '[place]\ngenerator = "a"',
        "drone": '[place]\ngenerator = "b"',
        "choir": '[place]\ngenerator = "b"',
    }
    with LocalLauncher(dict.fromkeys(places, str(MODEL)), places) as local:
        deployment = LoadingDeployment(local, oracle)
        others = deployment.send(20, "drone")
        assert deployment.unload("hum").reason == ""
        assert "shares all its workers with choir" in deployment.unload("drone").reason
        wait_for(lambda: running_workers(local) == ["b"])
        assert deployment.states == {"hum": "unloaded", "drone": "loaded", "choir": "loaded"}
        deployment.check(others)
        deployment.check(deployment.send(6, "choir"))
        deployment.check(deployment.send(6, "hum"))
        wait_for(lambda: running_workers(local) == ["a", "b"])


# ---------------------------------------------------------------- over HTTP
def send_chat(client, text, **more):
    body = {"model": "bird", "messages": [{"role": "user", "content": text}], "stream": True} | more
    return client.stream("POST", "/v1/chat/completions", json=body, timeout=60)


def answer_text(answer):
    chunks = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert chunks[-1] == "[DONE]"
    return "".join(json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])


def test_a_server_unloads_and_loads(report, tmp_path):
    operator_keys = tmp_path / "operator.keys"
    operator_keys.write_text("k\n")
    operator_keys.chmod(0o600)
    options = ("--name", "bird", "--operator-key-file", str(operator_keys))
    with start_server(f"{PARROT}:Parrot", *options) as (process, url):
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
            start = time.monotonic()
            with send_chat(client, "hello") as answer:
                assert answer_text(answer) == first
            report(f"the first answer came {time.monotonic() - start:.1f} s after the request")
            assert state() == "loaded"
            assert client.post("/v1/models/bird/load").json() == {"model": "bird", "state": "loaded"}
            assert client.post("/v1/models/absent/load").status_code == 404
