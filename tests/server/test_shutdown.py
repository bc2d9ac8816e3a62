"""End of a drain: open responses end with an error in their protocol, and are logged and counted with it."""

import json
import logging
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar.server import http_server
from mstar.server.shutdown import shutting_down
from tests.server import toy_server
from tests.server.model_server import serve_models
from tests.server.test_write_timeout import SEND_BUFFER, generate
from tests.server.toy_robot_models import Arm
from tests.server.toy_server import chat_body, run_toy_server
from tests.server.toy_speech_models import ToneSpeaker
from tests.server.toy_voice_model import Talker

CHAT = "/v1/chat/completions"
ERROR = shutting_down().content["error"]
LONG = "slow" + "x" * 3000
"""A text that takes about 30 s."""


@contextmanager
def access_log():
    """Collect the fields of access log lines, and every other line at error level."""
    lines, errors = [], []

    class Collector(logging.Handler):
        def emit(self, record):
            if record.name == "mstar.requests":
                lines.append(record.fields)
            elif record.levelno >= logging.ERROR:
                errors.append(record.getMessage())

    handler = Collector()
    logging.getLogger().addHandler(handler)
    logging.getLogger("mstar").setLevel(logging.INFO)
    try:
        yield lines, errors
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("mstar").setLevel(logging.NOTSET)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stream_that_is_cut_ends_with_an_error_event_and_is_counted_so(signals):
    with access_log() as (lines, errors):
        with run_toy_server(drain_timeout_s=0.3 if signals == 1 else 60) as server, server.client() as client:
            start = time.monotonic()
            with client.stream("POST", CHAT, json=chat_body(LONG, stream=True)) as answer:
                received = answer.iter_lines()
                assert next(received).startswith("data: ")
                for _ in range(signals):
                    server.drain()
                received = [line for line in received if line]
        assert time.monotonic() - start < 10
    metrics = {
        (sample.name, *sample.labels.values()): sample.value
        for family in server.state.metrics.registry.collect()
        for sample in family.samples
    }
    assert received[-2] == "event: error"
    assert json.loads(received[-1].removeprefix("data: ")) == {"error": ERROR}
    assert [(line["status"], line["code"]) for line in lines] == [(503, "shutting_down")]
    assert errors == []
    assert metrics["mstar_requests_total", CHAT, "503"] == 1
    assert metrics["mstar_request_errors_total", "shutting_down"] == 1
    assert metrics["mstar_responses_total", "parrot", "shutting_down"] == 1


def test_a_response_that_has_not_started_gets_a_503():
    with access_log() as (lines, errors), run_toy_server(drain_timeout_s=0.3) as server, server.client() as client:
        answers = []
        request = threading.Thread(target=lambda: answers.append(client.post(CHAT, json=chat_body(LONG))))
        request.start()
        while not server.parrot.seen:
            time.sleep(0.01)
        server.drain()
        request.join(10)
    assert (answers[0].status_code, answers[0].json()["error"]) == (503, ERROR)
    assert answers[0].headers["retry-after"] == "1"
    assert ([line["code"] for line in lines], errors) == (["shutting_down"], [])


def test_a_feed_without_a_request_is_ended_too():
    with (
        access_log() as (lines, errors),
        run_toy_server(drain_timeout_s=0.1) as server,
        server.client() as client,
        client.stream("GET", "/v1/events") as answer,
    ):
        received = answer.iter_lines()
        next(received)
        server.drain()
        received = [line for line in received if line]
    assert received[-2] == "event: error"
    assert json.loads(received[-1].removeprefix("data: ")) == {"error": ERROR}
    assert ([(line["endpoint"], line["status"]) for line in lines], errors) == ([("/v1/events", 503)], [])


def test_a_client_that_does_not_read_is_counted_with_the_error(monkeypatch):
    def bind_socket(*address):
        listener = http_server.bind_socket(*address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listener

    monkeypatch.setattr(toy_server, "bind_socket", bind_socket)
    with access_log() as (lines, errors), run_toy_server(drain_timeout_s=0.3) as server, generate(server):
        while not server.state.active_requests:
            time.sleep(0.01)
        time.sleep(0.5)  # the buffers are full: the handler waits in a send
        server.drain()
        while server.state.active_requests:
            time.sleep(0.01)
    assert ([(line["status"], line["code"]) for line in lines], errors) == ([(503, "shutting_down")], [])


# ---------------------------------------------------------------- WebSockets
@pytest.fixture
def model_server():
    models = {"talker": Talker(), "arm": Arm(), "speaker": ToneSpeaker()}
    with access_log() as logged, serve_models(models, drain_timeout_s=60) as server:
        server.logged = logged
        yield server


@pytest.mark.parametrize("path", ["/v1/realtime?model=talker", "/v1/audio/speech/stream", "/?model=arm"])
def test_an_idle_websocket_is_closed_when_the_drain_begins(path, model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}{path}") as websocket:
        if path != "/v1/audio/speech/stream":
            websocket.recv()
        model_server.drain()
        start = time.monotonic()
        events, close = receive_all(websocket)
    assert time.monotonic() - start < 5, "it does not hold up the drain"
    assert (close.code, close.reason) == (1012, "shutting_down")
    if "realtime" in path:
        assert [(event["type"], event["error"]["code"]) for event in events] == [("error", "shutting_down")]
    _, errors = model_server.logged
    assert errors == []


def test_a_realtime_response_ends_before_its_session_is_closed(model_server):
    with open_realtime(model_server) as websocket:
        respond(websocket, "slow" + "x" * 30)
        model_server.drain()
        events, close = receive_all(websocket)
    assert close.code == 1012
    assert [event["type"] for event in events][-2:] == ["response.done", "error"]
    assert events[-2]["response"]["status"] == "completed"
    assert events[-1]["error"]["code"] == "shutting_down"


def test_a_realtime_response_that_is_cut_fails_and_is_counted_so(model_server):
    with open_realtime(model_server) as websocket:
        respond(websocket, LONG)
        for _ in range(2):
            model_server.drain()
        events, close = receive_all(websocket)
    assert close.code == 1012
    assert [event["type"] for event in events][-2:] == ["response.done", "error"]
    assert events[-2]["response"]["status"] == "failed"
    assert events[-2]["response"]["status_details"]["error"]["code"] == "shutting_down"
    lines, errors = model_server.logged
    deadline = time.monotonic() + 5
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ([(line["status"], line["code"]) for line in lines], errors) == ([(503, "shutting_down")], [])


@contextmanager
def open_realtime(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}/v1/realtime?model=talker") as websocket:
        websocket.recv()
        yield websocket


def respond(websocket, text):
    """Ask for a response, and wait for its first output."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    websocket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    websocket.send(json.dumps({"type": "response.create"}))
    while "delta" not in json.loads(websocket.recv(timeout=10))["type"]:
        pass


def receive_all(websocket):
    """All events until the server closes the connection, and its close frame."""
    events = []
    try:
        while True:
            events.append(json.loads(websocket.recv(timeout=10)))
    except ConnectionClosed as closed:
        return events, closed.rcvd


def test_a_shutdown_does_not_wait_for_a_tick(monkeypatch):
    monkeypatch.setattr(http_server, "LOOP_TICK_S", 3600.0)
    with run_toy_server() as server:
        begun_at = time.monotonic()
    assert server.http_server.should_exit
    assert time.monotonic() - begun_at < 60
