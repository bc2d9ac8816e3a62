"""Access logs: one line for each request, in JSON and text, without client data."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mstar.server.access.api_keys import ApiKeys, RateLimit, Tenant, hash_key
from mstar.server.telemetry import logs
from mstar.wire.failure import Failure
from mstar.wire.messages import RequestFinished, Value
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server
from tests.tiers import ci_cases

ROOT = Path(__file__).parents[3]
CANARY = "canary7f3a"


@contextmanager
def captured_logs(log_format, capsys):
    """Capture log lines; yields a function that returns the new ones."""
    capsys.readouterr()

    with logs.logging_to_stderr(log_format) as writer:

        def read():
            assert writer.flush()
            return capsys.readouterr().err.splitlines()

        yield read


def lines_of(read, count):
    """All lines, once `count` access log lines are written: that happens after the client has its response."""
    lines, deadline = [], time.monotonic() + 2
    while sum("mstar.requests" in line for line in lines) < count and time.monotonic() < deadline:
        lines += read()
        time.sleep(0.01)
    return lines


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_that_cannot_be_formatted_raises_nothing(log_format, capsys):
    def write(message, *arguments, **fields):
        """Not with a logger: the handler of pytest raises."""
        record = logging.LogRecord("mstar.server", logging.WARNING, __file__, 7, message, arguments, None)
        record.fields = fields
        logs._handlers[-1].handle(record)

    with captured_logs(log_format, capsys) as read:
        write("%d", CANARY)
        write("lone", text={"a": "\ud800"})
        write("last")
        lines = read()
    assert len(lines) == 3
    for line in lines[:2]:
        assert "a log line cannot be formatted" in line
        assert "mstar.server test_logs.py:7" in line
        assert CANARY not in line
    assert "last" in lines[2]


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
    assert (second["status"], second["code"], second["model"]) == (400, "invalid_value", "")


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


def test_a_failure_of_a_model_is_logged_with_its_place(capsys):
    with run_toy_server() as server, server.client() as client, captured_logs("json", capsys) as read:
        answer = client.post("/v1/chat/completions", json=chat_body(f"a{BOOM}"), headers={"X-Request-Id": "r-1"})
        lines = [json.loads(line) for line in lines_of(read, 1)]
    (failure,) = [line for line in lines if line["level"] == "error"]
    known = ("event", "id", "model", "worker", "walk", "op", "error", "message")
    message = "an internal secret: /etc/passwd at 0x7fffdeadbeef"
    values = ["request failed", "r-1", "parrot", "local", "say", "letters.letter", "RuntimeError", message]
    assert [failure[name] for name in known] == values
    assert re.search(r"tests/server/toy_models\.py:\d+$", failure["location"])
    assert "in letter" in failure["traceback"]
    assert f"RuntimeError: {message}" in failure["traceback"]
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "model_error")
    assert error["message"] == "the model failed at this request: RuntimeError (request id r-1)"


def test_a_failure_is_readable_in_text_and_cannot_forge_a_line(capsys):
    failure = Failure("t1", "say", "lm.decode", "/m.py:3", 'Traceback:\n  File "/m.py", line 3, in f\nValueError: a\nb')
    end = RequestFinished("r", "failed", {}, Value(None), "ValueError", "a\nb", failure)
    with captured_logs("text", capsys) as read:
        logs.log_failure(end, "parrot", "r-1")
        first, *frames = read()
    assert first.endswith(
        "error mstar.failures: request failed id=r-1 model=parrot rid=r outcome=failed worker=t1 walk=say op=lm.decode "
        'error=ValueError message="a\\nb" location=/m.py:3'
    )
    assert frames == ["    Traceback:", '      File "/m.py", line 3, in f', "    ValueError: a", "    b"]


@pytest.mark.parametrize(
    ("status", "error", "level"),
    [
        *[("ok", "", ""), ("cancelled", "", ""), ("failed", "BadSampling", ""), ("failed", "KeyError", "error")],
        *[
            ("poison", "Poison", "error"),
            ("deadline", "Deadline", "warning"),
            ("unavailable", "Unavailable", "warning"),
        ],
    ],
)
def test_which_ends_are_logged_as_failures(status, error, level, capsys):
    with captured_logs("json", capsys) as read:
        logs.log_failure(RequestFinished("r", status, {}, Value(None), error, "why"), "parrot")
        lines = [json.loads(line)["level"] for line in read()]
    assert lines == ([level] if level else [])


def test_logging_is_restored(capsys):
    def settings():
        level = logging.getLogger("mstar").level
        return [*logging.getLogger().handlers], level, threading.excepthook, sys.unraisablehook, warnings.showwarning

    before = settings()
    with logs.logging_to_stderr("json"):
        assert settings() != before
    assert settings() == before


def test_a_log_that_nobody_reads_does_not_stop_the_server(monkeypatch):
    reading, writing = os.pipe()
    with run_toy_server() as server, server.client() as client, os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with logs.logging_to_stderr("json") as writer:
            writer.on_drop = server.state.metrics.log_lines_dropped.inc
            try:
                for number in range(300):
                    client.get(f"/v1/{number}")  # a log line each
                for number in range(10_000):  # more than the pipe and the queue hold
                    server.run_in_loop(logging.getLogger("mstar.server").info, "line %d", number)
                assert client.get("/health", timeout=5).status_code == 200
                (dropped,) = re.findall(
                    r"^mstar_log_lines_dropped_total (\S+)$", client.get("/metrics").text, re.MULTILINE
                )
            finally:
                lines = _read_pipe(reading, writer)
    assert float(dropped) > 0
    events = [json.loads(line) for line in lines]
    assert [one["endpoint"] for one in events if one["logger"] == "mstar.requests"][:300] == ["none"] * 300
    reported = [one["lines"] for one in events if one["event"] == "log lines were dropped: stderr was blocked"]
    assert sum(reported) >= float(dropped), "the log reports them once it is read again"


def _read_pipe(reading, writer):
    """Read a pipe until the writer has nothing left."""
    chunks = []

    def read():
        while chunk := os.read(reading, 1 << 16):
            chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    assert writer.flush(5)
    sys.stderr.close()
    reader.join(5)
    os.close(reading)
    return b"".join(chunks).decode().splitlines()


def test_json_logs_hold_nothing_but_json(capsys):
    own = '{"event":"a line of a child"}'
    with captured_logs("json", capsys) as read:
        logs.write_output("t1", 42, [own, "Traceback:", "ValueError: no", own])
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # pytest turns warnings into errors
            warnings.warn("deprecated", stacklevel=1)
        thread = threading.Thread(target=lambda: 1 / 0, name="failing")
        thread.start()
        thread.join()
        lines = [json.loads(line) for line in read()]
    assert [lines[0], lines[2]] == [json.loads(own)] * 2
    fields = {name: lines[1][name] for name in ("process", "pid", "output")}
    assert fields == {"process": "t1", "pid": 42, "output": "Traceback:\nValueError: no"}
    assert (lines[3]["logger"], "deprecated" in lines[3]["event"]) == ("py.warnings", True)
    assert (lines[4]["event"], lines[4]["error"]) == ("unhandled exception in thread failing", "ZeroDivisionError")


def test_each_line_names_its_process(capsys):
    with captured_logs("json", capsys) as read:
        logging.getLogger("mstar.server").info("up")
        (line,) = read()
    assert (json.loads(line)["process"], json.loads(line)["pid"]) == ("front", os.getpid())
    for log_format, expected in (("json", f'"process":"t1","pid":{os.getpid()}'), ("text", f"t1[{os.getpid()}] mstar")):
        with logs.logging_in_child(log_format, "t1"):
            logging.getLogger("mstar.worker").info("up")
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", "dbg inf wrn err lib"), ("info", "inf wrn err lib"), ("warning", "wrn err lib"), ("error", "err")],
)
def test_the_level_applies_to_every_process(capsys, level, expected):
    def log_all():
        own = logging.getLogger("mstar.worker")
        own.debug("dbg")
        own.info("inf")
        own.warning("wrn")
        own.error("err")
        logging.getLogger("library").info("data of a client")
        logging.getLogger("library").warning("lib")

    with logs.logging_to_stderr("json", level) as writer:
        log_all()
        assert writer.flush()
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == expected.split()
    with logs.logging_in_child("json", "worker", level):
        log_all()
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == expected.split()


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
@pytest.mark.parametrize("log_format", ci_cases(["json", "text"], "json"))
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
        assert {json.loads(line)["level"] for line in output.splitlines()} == {"info", "warning", "error"}


def _until(path, word):
    deadline = time.monotonic() + 30
    while word not in (text := path.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


def _worker(pid):
    """Process id of the worker, by the title of its process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    pids = sorted(int(one) for file in files for one in file.read_text().split())
    return next(one for one in pids if "mstar: worker" in Path(f"/proc/{one}/cmdline").read_text())
