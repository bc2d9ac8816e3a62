"""Unloading and loading, where it cannot be done, or nobody answers; what can is in tests/served/test_rests."""

from concurrent.futures import Future

import pytest

from mstar.server import rest
from mstar.server.door import Phase


def error(answer):
    return answer.status_code, answer.json()["error"]["code"]


def test_models_in_this_process_are_up_and_stay(server):
    with server.client() as client:
        assert {one["state"] for one in client.get("/v1/models").json()["data"]} == {"up"}
        assert client.get("/v1/models/parrot").json()["state"] == "up"
        refused = client.post("/v1/models/parrot/unload")
        assert error(refused) == (409, "not_elastic")
        assert "serve without --in-process" in refused.json()["error"]["message"]
        assert client.post("/v1/models/parrot/load").json() == {"model": "parrot", "state": "up"}
        for what in ("load", "unload"):
            assert error(client.post(f"/v1/models/nobody/{what}")) == (404, "model_not_found")
            assert client.put(f"/v1/models/parrot/{what}").status_code == 405


def test_nothing_is_done_while_the_server_starts_or_ends(server, monkeypatch):
    monkeypatch.setattr(server.door, "phase", Phase("draining"))
    with server.client() as client:
        for what in ("load", "unload"):
            answer = client.post(f"/v1/models/parrot/{what}")
            assert error(answer) == (503, "not_ready")
            assert answer.headers["retry-after"]


@pytest.fixture
def mute(server, monkeypatch):
    """A conductor that does not answer."""
    monkeypatch.setattr(rest, "ANSWER_S", 0.05)
    monkeypatch.setattr(server.front, "take_standing", lambda *_: Future())
    return server


def test_a_conductor_that_does_not_answer_is_not_waited_for(mute):
    with mute.client() as client:
        assert {one["state"] for one in client.get("/v1/models").json()["data"]} == {"loading"}
        assert error(client.post("/v1/models/parrot/unload")) == (503, "not_ready")


def test_before_anybody_is_there_all_models_load(server, monkeypatch):
    monkeypatch.setattr(server.door, "bridge", None)
    with server.client() as client:
        assert client.get("/v1/models/parrot").json()["state"] == "loading"
