"""Model loading endpoints: errors and timeouts. tests/integration/test_model_loading.py loads real workers."""

import json
from concurrent.futures import Future

import pytest

from mstar.server.access.api_keys import ApiKeys
from mstar.server.admin import model_loading
from mstar.server.state import Phase
from mstar.server.status import WorkerProcessStatus
from tests.server.toy_server import run_toy_server


def error(answer):
    return answer.status_code, answer.json()["error"]["code"]


def test_in_process_models_are_loaded_and_cannot_be_unloaded(server):
    with server.client() as client:
        assert {one["state"] for one in client.get("/v1/models").json()["data"]} == {"loaded"}
        assert client.get("/v1/models/parrot").json()["state"] == "loaded"
        response = client.post("/v1/models/parrot/unload")
        assert error(response) == (409, "cannot_unload")
        assert "serve without --in-process" in response.json()["error"]["message"]
        assert client.post("/v1/models/parrot/load").json() == {"model": "parrot", "state": "loaded"}
        for command in ("load", "unload"):
            assert error(client.post(f"/v1/models/absent/{command}")) == (404, "model_not_found")
            assert client.put(f"/v1/models/parrot/{command}").status_code == 405


def test_models_metrics_and_events_tell_the_devices_of_loaded_components():
    with run_toy_server() as server, server.client() as client:
        devices = {"parrot.letters": "cuda:0", "vectors.absent": "cpu"}
        server.state.process_statuses = lambda: {"local": WorkerProcessStatus("up", devices=devices)}
        assert client.get("/v1/models/parrot").json()["devices"] == {"local": {"letters": "cuda:0"}}
        models = {one["id"]: one["devices"] for one in client.get("/v1/models").json()["data"]}
        assert models == {"parrot": {"local": {"letters": "cuda:0"}}, "vectors": {}, "mixer": {}, "free": {}}
        info = 'mstar_component_info{component="letters",device="cuda:0",model="parrot",worker="local"} 1.0'
        assert info in client.get("/metrics").text
        with client.stream("GET", "/v1/events") as events:
            update = next(line for line in events.iter_lines() if line.startswith("data: "))
        assert json.loads(update.removeprefix("data: "))["workers"][0]["devices"] == devices


def test_models_tell_why_a_result_can_depend_on_other_requests():
    with run_toy_server() as server, server.client() as client:
        devices = {"parrot.letters": "cpu"}
        reasons = {"parrot.letters": "torch computes its attention", "vectors.absent": "another"}
        for given, deterministic in (({}, True), (reasons, False)):
            status = WorkerProcessStatus("up", devices=devices, nondeterminism=given)
            server.state.process_statuses = lambda status=status: {"local": status}
            parrot = client.get("/v1/models/parrot").json()
            assert parrot["deterministic"] is deterministic
            assert parrot["nondeterminism"] == ({"letters": given["parrot.letters"]} if given else {})
        server.state.process_statuses = lambda: {"local": WorkerProcessStatus("starting")}
        assert client.get("/v1/models/parrot").json()["deterministic"] is None


@pytest.mark.parametrize("command", ["load", "unload"])
def test_only_an_operator_key_loads_and_unloads_models(command):
    with run_toy_server(keys=ApiKeys(["k"], operator_keys=["o"])) as server:
        with server.client("k") as client:
            for model in ("parrot", "absent"):
                response = client.post(f"/v1/models/{model}/{command}")
                assert error(response) == (403, "operator_required")
            assert "fix: send one, or configure one with --operator-key-file" in response.json()["error"]["message"]
        with server.client("o") as operator:
            assert operator.post(f"/v1/models/parrot/{command}").status_code in (200, 409)
            assert error(operator.post(f"/v1/models/absent/{command}")) == (404, "model_not_found")


def test_loading_is_rejected_unless_the_server_is_ready(server, monkeypatch):
    monkeypatch.setattr(server.state, "phase", Phase("draining"))
    with server.client() as client:
        for command in ("load", "unload"):
            answer = client.post(f"/v1/models/parrot/{command}")
            assert error(answer) == (503, "not_ready")
            assert answer.headers["retry-after"]


@pytest.fixture
def silent_conductor(server, monkeypatch):
    """A conductor that does not answer."""
    monkeypatch.setattr(model_loading, "CONDUCTOR_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server.front, "query_model_status", lambda *_: Future())
    return server


def test_a_silent_conductor_times_out(silent_conductor):
    with silent_conductor.client() as client:
        assert {one["state"] for one in client.get("/v1/models").json()["data"]} == {"loading"}
        assert error(client.post("/v1/models/parrot/unload")) == (503, "not_ready")


def test_all_models_are_loading_before_workers_are_up(server, monkeypatch):
    monkeypatch.setattr(server.state, "bridge", None)
    with server.client() as client:
        assert client.get("/v1/models/parrot").json()["state"] == "loading"
