"""Access logs: one line for each request, in JSON and text, without client data."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mstar.server.access.api_keys import ApiKeys, RateLimit, Tenant, hash_key
from mstar.server.telemetry import logs
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server

ROOT = Path(__file__).parents[3]
CANARY = "canary7f3a"


@contextmanager
def captured_logs(log_format, capsys):
    """Capture log lines; yields a function that returns the new ones."""
    capsys.readouterr()

    def read():
        return capsys.readouterr().err.splitlines()

    with logs.logging_to_stderr(log_format):
        yield read


def lines_of(read, count):
    """All lines, once `count` access log lines are written: that happens after the client has its response."""
    lines, deadline = [], time.monotonic() + 2
    while sum("mstar.requests" in line for line in lines) < count and time.monotonic() < deadline:
        lines += read()
        time.sleep(0.01)
    return lines


def test_a_request_writes_an_access_log_line(capsys):
    keys = ApiKeys(tenants={hash_key("k"): Tenant("bob", RateLimit())})
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with run_toy_server(keys=keys) as server, server.client("k") as client, captured_logs("json", capsys) as read:
        body = chat_body("abc")
        answer = client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine", "traceparent": parent})
        client.post("/v1/chat/completions", json=chat_body("x", n=99))
        client.get("/health")
        lines = [json.loads(line) for line in lines_of(read, 2)]
    first, second = lines  # none for /health
    assert (first["logger"], first["event"], first["level"]) == ("mstar.requests", "request", "info")
    known = ("id", "endpoint", "model", "tenant", "status", "code", "emissions", "trace")
    assert [first[name] for name in known] == [
        *("mine", "/v1/chat/completions", "parrot", "bob", 200, ""),
        {"Text": 3},
        "0af7651916cd43dd8448eb211c80319c",
    ]
    assert first["bytes_in"] == len(answer.request.content)
    assert first["bytes_out"] == len(answer.content)
    assert 0 < first["time_to_first_output_s"] < first["seconds"]
    assert len(first["rids"]) == 1
    assert (second["status"], second["code"], second["model"]) == (422, "invalid_value", "")


def test_text_lines(capsys):
    with run_toy_server() as server, server.client() as client, captured_logs("text", capsys) as read:
        client.post("/v1/chat/completions", json=chat_body("abc"))
        (line,) = lines_of(read, 1)
    assert " info mstar.requests: request id=" in line
    assert "endpoint=/v1/chat/completions model=parrot status=200 seconds=" in line
    assert 'emissions={"Text":3}' in line


def test_an_error_is_logged_without_its_message(capsys):
    with captured_logs("json", capsys) as read:
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger("mstar.server").exception("request %s", "r1")
        logging.getLogger("library").info("received %s", CANARY)
        (line,) = read()
    fields = json.loads(line)
    assert (fields["event"], fields["error"], fields["level"]) == ("request r1", "ValueError", "error")
    assert "test_logs.py" in fields["stack"][-1]
    assert CANARY not in line


def test_logging_is_restored(capsys):
    before = [*logging.getLogger().handlers], logging.getLogger("mstar").level
    with logs.logging_to_stderr("json"):
        pass
    assert ([*logging.getLogger().handlers], logging.getLogger("mstar").level) == before


def test_a_malformed_traceparent_is_ignored():
    assert logs.trace_id_from(f"00-{CANARY}-1-01") is None
    assert logs.trace_id_from("") is None


def _canaries(client):
    """Send requests with a canary in all client data."""
    headers = {"X-Secret": CANARY, "User-Agent": CANARY, "Cookie": f"a={CANARY}"}
    body = chat_body(f"{CANARY} please", user=CANARY)
    client.post("/v1/chat/completions", json=body, headers=headers)
    client.post("/v1/chat/completions", json=body | {"stream": True})
    client.post("/v1/chat/completions", json=chat_body(f"{CANARY}{BOOM}"))  # the model raises
    client.post("/v1/chat/completions", json={"model": CANARY, "messages": []})
    client.post("/v1/chat/completions", content=f'{{"{CANARY}'.encode(), headers={"Content-Type": "application/json"})
    client.post(f"/v1/{CANARY}?q={CANARY}")
    client.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {CANARY}"})
    picture = {"type": "image_url", "image_url": {"url": f"https://example.org/{CANARY}.png"}}
    client.post("/v1/chat/completions", json=chat_body([picture, {"type": "text", "text": CANARY}]))
    file = {"file": (f"{CANARY}.wav", CANARY.encode() * 100)}
    client.post("/v1/audio/transcriptions", data={"model": "parrot", "prompt": CANARY}, files=file)
    client.post("/v1/generate", json={"model": "parrot", "request": {CANARY: CANARY}})


def test_client_data_is_not_logged_at_any_level(capsys):
    root = logging.getLogger()
    before, own = root.level, logging.getLogger("mstar").level
    try:
        with run_toy_server(keys=ApiKeys([f"{CANARY}-key"])) as server, server.client(f"{CANARY}-key") as client:
            for log_format in ("json", "text"):
                with captured_logs(log_format, capsys) as read:
                    root.setLevel(logging.DEBUG)
                    logging.getLogger("mstar").setLevel(logging.DEBUG)
                    _canaries(client)
                    lines = lines_of(read, 10)
                assert sum("mstar.requests" in line for line in lines) == 10
                assert not [line for line in lines if CANARY in line]
    finally:
        root.setLevel(before)
        logging.getLogger("mstar").setLevel(own)


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_process_logs_client_data(log_format, tmp_path):
    """Output of `mstar serve` and its child processes, while requests fail and a worker is killed."""
    command = [
        sys.executable,
        "-m",
        "mstar.cli",
        "serve",
        f"{ROOT}/tests/server/toy_models.py:Parrot",
        "--name",
        "parrot",
    ]
    command += ["--port", "0", "--log-format", log_format]
    environment = os.environ | {"MSTAR_API_KEY": f"{CANARY}-key"}
    with (tmp_path / "out").open("w+b") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            url = re.search(r"http://[\d.]+:\d+", _until(tmp_path / "out", "ready"))[0]
            headers = {"Authorization": f"Bearer {CANARY}-key"}
            with httpx2.Client(base_url=url, headers=headers, timeout=20) as client:
                _canaries(client)
                body = chat_body(f"slow {CANARY}" + "x" * 150, stream=True)
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    lines = answer.iter_lines()
                    next(lines)
                    os.kill(_worker(process.pid), signal.SIGKILL)
                    assert [*lines][-2] == "data: [DONE]"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
    output = (tmp_path / "out").read_text()
    assert output.count("mstar.requests") == 11
    assert "SIGKILL" in output
    assert CANARY not in output
    if log_format == "json":
        assert {json.loads(line)["level"] for line in output.splitlines()} == {"info", "warning"}


def _until(path, word):
    deadline = time.monotonic() + 30
    while word not in (text := path.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


def _worker(pid):
    """Process id of the worker: it starts after the conductor and before the standby."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    pids = sorted(int(one) for file in files for one in file.read_text().split())
    return [one for one in pids if "mstar.launch.child_main" in Path(f"/proc/{one}/cmdline").read_text()][1]
