"""Exceptions of a model's code, in the runtime and in the front end: what the log, the trace and the client get."""

import json
import re

import httpx2
import pytest

from mstar.server import arrays
from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.host_check import HostCheck
from mstar.server.state import ServerState
from tests.server.telemetry.test_logs import captured_logs, lines_of
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server

SECRET = "an internal secret: /etc/passwd at 0x7fffdeadbeef"


@pytest.fixture(scope="module")
def server():
    with run_toy_server() as running:
        yield running


@pytest.fixture(params=[True, False], ids=["exposed", "hidden"])
def is_exposed(request, server):
    server.state.expose_errors = request.param
    yield request.param
    server.state.expose_errors = None


def send(server, text, **more):
    """Send a chat request; returns the error that the client gets."""
    with server.client() as client:
        response = client.post("/v1/chat/completions", json=chat_body(text, **more), headers={"X-Request-Id": "r-1"})
        if more.get("stream"):
            return json.loads(response.text.split("event: error\ndata: ")[1].partition("\n")[0])["error"]
        assert response.status_code == 500
        return response.json()["error"]


def front_end_text(server):
    """What the trace says of the front end."""
    with server.client() as client:
        spans = client.get("/v1/requests/r-1/trace").json()["spans"]
    return next(span["text"] for span in spans if span["kind"] == "request")


def fail_detokenize(tokens, /):
    if len(tokens) > 1:  # after the first text, so that a stream has begun
        raise LookupError("no such token")
    return bytes(tokens).decode()


def test_the_client_gets_the_type_and_the_message_only_if_exposed(server, is_exposed):
    reason = f"RuntimeError: {SECRET}" if is_exposed else "RuntimeError"
    error = send(server, f"a{BOOM}")
    assert error["message"] == f"the model failed at this request: {reason} (request id r-1)"
    assert error["code"] == "model_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_exception_of_detokenize_is_one_of_the_model(server, is_exposed, stream, capsys, monkeypatch):
    monkeypatch.setattr(server.parrot, "detokenize", fail_detokenize)
    with captured_logs("json", capsys) as read:
        error = send(server, "abc", stream=stream)
        (line,) = [entry for entry in map(json.loads, lines_of(read, 1)) if entry["level"] == "error"]
    reason = "LookupError: no such token" if is_exposed else "LookupError"
    assert error["message"] == f"the model failed at this request: {reason} (request id r-1)"
    assert error["code"] == "model_error"
    known = [line[name] for name in ("logger", "event", "id", "model", "worker", "error", "message")]
    assert known == ["mstar.failures", "request failed", "r-1", "parrot", "front", "LookupError", "no such token"]
    assert re.search(r"tests/server/test_unexpected_errors\.py:\d+$", line["location"])
    assert "in fail_detokenize" in line["traceback"]
    assert re.fullmatch(r"LookupError at test_unexpected_errors\.py:\d+", front_end_text(server))


def test_a_value_that_no_response_can_be_made_of(server, is_exposed, capsys, monkeypatch):
    monkeypatch.setattr(server.parrot, "detokenize", lambda _tokens, /: 7)
    with captured_logs("json", capsys) as read:
        error = send(server, "abc")
        (line,) = [entry for entry in map(json.loads, lines_of(read, 1)) if entry["level"] == "error"]
    message = "object of type 'int' has no len()"
    assert error["code"] == "internal_error"
    assert (f"TypeError: {message} (request id r-1)" in error["message"]) is is_exposed
    assert (line["event"], line["error"], line.get("message")) == (
        "request r-1",
        "TypeError",
        message if is_exposed else None,
    )
    assert "detokenizer.py" in line["stack"][-1]
    assert re.fullmatch(r"TypeError at detokenizer\.py:\d+", front_end_text(server))


def test_an_exception_in_the_middle_of_a_stream_without_events_is_recorded(server, monkeypatch):
    def to_plain(*_):
        raise LookupError("no such value")

    monkeypatch.setattr(arrays, "to_plain", to_plain)
    failed = server.state.metrics.requests.labels("/v1/generate", "500")._value
    before = failed.get()
    body = {"model": "parrot", "request": {"messages": [{"role": "user", "parts": ["ab"]}]}}
    headers = {"Accept": "application/msgpack", "X-Request-Id": "r-2"}
    with server.client() as client, pytest.raises(httpx2.RemoteProtocolError):
        client.post("/v1/generate", json=body, headers=headers)
    assert server.wait_until_idle()
    with server.client() as client:
        (entry,) = [entry for entry in client.get("/v1/requests").json()["data"] if entry["id"] == "r-2"]
    assert (entry["status"], entry["code"], entry["error"]["type"]) == (500, "model_error", "LookupError")
    assert failed.get() == before + 1


def test_errors_are_exposed_on_a_loopback_address_without_keys():
    state = ServerState({})
    assert not state.exposes_errors, "the address is not known to be local"
    state.host_check = HostCheck("127.0.0.1", 8000)
    assert state.exposes_errors
    state.expose_errors = False
    assert not state.exposes_errors
    guarded = ServerState({}, ApiKeys(["k"]))
    guarded.host_check = state.host_check
    assert not guarded.exposes_errors
    guarded.expose_errors = True
    assert guarded.exposes_errors
