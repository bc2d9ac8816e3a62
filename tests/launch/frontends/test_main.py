"""Several front ends on one port: real processes that serve, are killed, restart and drain."""

import os
import re
import signal
import socket
import threading
import time

import httpx2
import numpy as np
import pytest

from mstar.cli import main
from mstar.client import Client, NotFound
from mstar.server.robotics import openpi
from tests.launch.frontends.several_frontends import ROOT, serve_frontends, stream_response

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LONG = "slow" + "x" * 300
FRAMES = np.ones((2, 3, 16, 16), np.float32)
ACTION = np.ones(7, np.float32)
SLOW_START = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
from mstar.requests import ChatRequest, Message
from tests.server.toy_models import Parrot

class SlowStart(Parrot):
    def warmup_requests(self):
        return [ChatRequest((Message("user", ("slow",)),))] * 400
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve_frontends(tmp_path_factory.mktemp("server"), "--api-key", "k", key="k") as started:
        yield started


def test_a_response_can_be_read_continued_and_deleted_at_any_front_end(server):
    (first, _), (second, there) = server.clients()
    assert first.get(f"/v1/responses/{there}").json()["output"][0]["content"][0]["text"] == "hello"
    body = {"model": "bird", "input": "again", "previous_response_id": there}
    created = first.post("/v1/responses", json=body).json()
    assert created["id"].startswith("resp_f1_"), "the connection decides where a response is made"
    items = second.get(f"/v1/responses/{created['id']}/input_items?order=asc").json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["hello", "hello", "again"]
    assert first.delete(f"/v1/responses/{there}").json()["deleted"]
    assert first.get(f"/v1/responses/{there}").status_code == second.get(f"/v1/responses/{there}").status_code == 404
    missing = first.post("/v1/responses", json=body)
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_a_forwarded_request_is_authenticated_where_the_object_is(server):
    (first, _), (_, there) = server.clients()
    path = f"/v1/responses/{there}"
    assert first.get(path, headers={"Authorization": "Bearer other"}).status_code == 401
    assert first.get(path, headers={"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"


def test_a_world_is_stepped_through_any_front_end(server):
    (first, _), (second, _) = server.clients()
    headers = {"Content-Type": "application/msgpack"}
    body = openpi.pack({"model": "dreamer", "observation": {"frames": FRAMES}})
    world = openpi.unpack(first.post("/v1/worlds", content=body, headers=headers).content)["id"]
    assert world.startswith("world_f1_")
    for number, client in enumerate((first, second, second, first)):
        step = client.post(f"/v1/worlds/{world}/step", content=openpi.pack({"action": ACTION}), headers=headers)
        assert openpi.unpack(step.content)["step"] == number
    assert second.delete(f"/v1/worlds/{world}").status_code == 200
    assert first.get(f"/v1/worlds/{world}").status_code == 404


def test_a_realtime_session_is_resumed_and_imported_through_any_front_end(server):
    def respond(call, text):
        part = {"type": "input_text", "text": text}
        call.send({"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [part]}})
        call.send({"type": "response.create"})
        for event in call:
            assert event["type"] != "error", event
            events.append(event["event_id"])
            if event["type"] == "response.done":
                return event["response"]["output"][0]["content"][0]["text"]

    def resumes():
        return sum(value for _, value in server.figures("mstar_realtime_resumes_total"))

    session = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
    events, before = [], resumes()
    with Client(server.url, "k") as client, client.realtime("bird") as call:
        session_id = call.recv()["session"]["id"]
        assert re.match("sess_f[12]_", session_id)
        call.send({"type": "session.update", "session": session})
        for number in range(12):
            assert respond(call, f"number {number}") == f"number {number}"
            call._socket.socket.shutdown(socket.SHUT_RDWR)
        assert respond(call, "last") == "last"
        assert len({*events}) == len(events)
        file = client.export_session(session_id)
    deadline = time.monotonic() + 60
    # The page of one front end has the others as of a while ago, so the next page can show less than the last one.
    while (counted := resumes()) < before + 12 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert counted == before + 12
    for _ in range(8):
        with Client(server.url, "k") as client:
            imported = client.import_session(file).id
            with client.realtime(session_id=imported) as call:
                assert call.recv()["session"]["id"] == imported
                assert respond(call, "again") == "again"
    with Client(server.url, "k") as client, pytest.raises(NotFound), client.realtime(session_id="sess_f2_gone"):
        pass


def test_requests_are_listed_traced_and_cancelled_at_any_front_end(server):
    (first, _), (second, _) = server.clients()
    body = {"model": "bird", "messages": [{"role": "user", "content": LONG}], "stream": True}
    with first.stream("POST", "/v1/chat/completions", json=body, headers={"X-Request-Id": "long-one"}) as response:
        lines = response.iter_lines()
        next(lines)
        for client in (second, server.client()):
            assert "long-one" in [record["id"] for record in client.get("/v1/requests").json()["data"]]
        assert second.post("/v1/requests/long-one/cancel").json() == {"id": "long-one", "cancelled": True}
        assert "cancelled" in "".join(lines)
    kinds = {span["kind"] for span in second.get("/v1/requests/long-one/trace").json()["spans"]}
    assert {"request", "walk", "op"} <= kinds
    assert second.get("/v1/requests/none/trace").status_code == 404


def test_metrics_have_the_series_of_every_front_end(server):
    server.clients()
    server.by_process("mstar_responses_total", ["front-1", "front-2"], "frontend")
    ups = server.figures("mstar_worker_up")
    assert ups
    assert all("frontend" not in labels for labels, _ in ups), "the same at every front end"
    processes = ("front-1", "front-2", "launcher", "conductor")
    cpu = server.by_process("mstar_process_cpu_seconds_total", processes)
    assert {name: cpu[name][0]["role"] for name in processes} == {
        **dict.fromkeys(("front-1", "front-2"), "frontend"),
        **{name: name for name in ("launcher", "conductor")},
    }
    assert all(seconds > 0 for _, seconds in cpu.values())
    assert len({server.pid(name) for name in processes}) == 4
    restarts = server.by_process("mstar_process_restarts_total", processes)
    assert all(count == 0 for _, count in restarts.values())


def test_a_port_in_use_is_refused(server, capfd):
    port = server.url.rpartition(":")[2]
    assert main(["serve", str(ROOT / "examples" / "noop.py"), "--port", port, "--frontends", "2"]) == 1
    assert "cannot listen" in capfd.readouterr().err


def test_a_killed_front_end_ends_only_its_own_connections(tmp_path):
    with serve_frontends(tmp_path) as server:
        (first, lost), (second, kept) = server.clients()
        _, dying = stream_response(first, LONG)
        _, living = stream_response(second, LONG)
        texts, resumed = ["slow" + letter * 150 for letter in "abcdefgh"], {}

        def read(text):
            with Client(server.url) as client:
                pieces = client.chat("bird", text, resume=True, temperature=0)
                resumed[text] = "".join(piece.text for piece in pieces)

        threads = [threading.Thread(target=read, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        next(dying), next(living)
        time.sleep(0.5)
        os.kill(server.pid("front-1"), signal.SIGKILL)
        with pytest.raises(httpx2.HTTPError):
            list(dying)
        assert len([*living]) == len(LONG) - 1, "the other front end does not notice"
        for thread in threads:
            thread.join(60)
        assert resumed == {text: text for text in texts}, "clients that resume go on at the other front end"
        server.wait_for(r"front-1\.0 killed by SIGKILL")
        server.wait_for(r"front-1 is ready again")
        (again, _), _ = server.clients()
        assert again.get(f"/v1/responses/{lost}").status_code == 404, "what was in its memory is gone"
        assert again.get(f"/v1/responses/{kept}").status_code == 200
        deadline = time.monotonic() + 20
        while server.by_process("mstar_process_requests", ["conductor"])["conductor"][1]:
            assert time.monotonic() < deadline, "requests of the dead front end are cancelled"
            time.sleep(0.2)
        assert server.by_process("mstar_process_restarts_total", ["front-1"])["front-1"][1] == 1


def test_keys_are_reloaded_and_a_shutdown_drains_all_front_ends(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    keys.chmod(0o600)
    with serve_frontends(tmp_path, "--api-key-file", str(keys), "--probe-port", "0", key="one") as server:
        connections = [client for client, _ in server.clients()]
        assert {client.get("/ready").status_code for client in connections} == {200}
        keys.write_text("two\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("1 added, 1 withdrawn")
        deadline = time.monotonic() + 10
        while {client.get("/ready").status_code for client in connections} != {401}:
            assert time.monotonic() < deadline
        server.wait_for("all workers replaced")
        server.key = "two"
        probe = server.wait_for(r"probes at port (\d+)")[1]
        assert httpx2.get(f"http://127.0.0.1:{probe}/ready").json()["phase"] == "ready"
        streams = [stream_response(client, LONG)[1] for client, _ in server.clients()]
        for stream in streams:
            next(stream)
        server.stop()
        while (phase := httpx2.get(f"http://127.0.0.1:{probe}/ready").json()["phase"]) == "ready":
            time.sleep(0.01)
        assert phase == "draining"
        assert [len([*stream]) for stream in streams] == [len(LONG) - 1] * 2
        assert server.process.wait(30) == 0
        assert re.findall("^(?:ready|stopping|stopped)$", server.output, re.MULTILINE)[-2:] == ["stopping", "stopped"]
        assert not re.search(r"front-\d (is ready again|failed)", server.output), "they are not restarted"


@pytest.mark.nightly
def test_a_signal_during_the_warm_up_ends_the_server(tmp_path):
    model = tmp_path / "slow_start.py"
    model.write_text(SLOW_START)
    models = f'[models.bird]\nmodel = "{model}:SlowStart"\n'
    with serve_frontends(tmp_path, models=models, until="warm-up: ChatRequest") as server:
        server.stop()
        assert server.process.wait(30) == 0
        assert re.findall("^(?:ready|stopping|stopped)$", server.output, re.MULTILINE)[-2:] == ["stopping", "stopped"]
        assert not re.search("^ready$", server.output, re.MULTILINE), "it did not become ready"


@pytest.mark.nightly
def test_a_second_signal_ends_the_requests_of_all_front_ends(tmp_path):
    with serve_frontends(tmp_path) as server:
        streams = [stream_response(client, LONG)[1] for client, _ in server.clients()]
        for stream in streams:
            next(stream)
        server.stop()
        time.sleep(0.5)
        server.stop()
        start = time.monotonic()
        assert server.process.wait(20) == 0
        assert time.monotonic() - start < 3
        assert all(len([*stream]) < len(LONG) - 1 for stream in streams)
