"""`mstar serve` as an operator runs it: a process with a port, ready when it says so, gone when it is told to go."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI

from mstar.cli import main

ROOT = Path(__file__).parents[2]
NOOP, SMOLLM2 = ROOT / "examples" / "noop.py", ROOT / "examples" / "real" / "smollm2.py"
PARROT = ROOT / "tests" / "server" / "toy_models.py"


@contextmanager
def start_server(model, *more, verb="serve"):
    """A server in a process of its own; its address, and how to read what it prints."""
    command = [sys.executable, "-m", "mstar.cli", verb, str(model), "--port", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    try:
        url = process.stdout.readline().split()[-1]
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_ready(process):
    """What it prints until it is ready."""
    lines = []
    while (line := process.stdout.readline()) and line != "ready\n":
        lines.append(line)
    assert line == "ready\n", "".join(lines)
    return lines


def wait_exit(process):
    """Its exit status, and what it printed last."""
    last = process.stdout.read()
    return process.wait(10), last


def test_running_requests_finish_after_a_signal():
    with start_server(f"{PARROT}:Parrot", "--in-process", "--name", "bird", "--api-key", "k") as (process, url):
        lines = wait_ready(process)
        assert lines[-1] == f"  API at {url}/v1, studio at {url}/\n"
        assert "  worker local: bird.letters on cpu\n" in lines
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        with httpx2.Client(base_url=url, headers={"Authorization": "Bearer k"}) as client:
            assert client.get("/ready").json()["phase"] == "ready"
            body = {"model": "bird", "stream": True, "messages": [{"role": "user", "content": "slow" + "x" * 50}]}
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                while (phase := client.get("/ready").json()["phase"]) == "ready":
                    time.sleep(0.005)
                assert phase == "draining"
                assert client.post("/v1/chat/completions", json=body).status_code == 503
                assert [*lines][-2] == "data: [DONE]"
        status, last = wait_exit(process)
        assert (status, last.splitlines()[-2:]) == (0, ["stopping", "stopped"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_needs_a_key(host, capsys):
    assert main(["serve", str(NOOP), "--host", host]) == 1
    assert "fix: pass --api-key-file" in capsys.readouterr().err


def test_a_server_without_keys_accepts_only_known_hosts():
    with start_server(NOOP, "--in-process", "--allow-host", "box.local") as (process, url):
        wait_ready(process)
        port = url.rpartition(":")[2]
        for host, status in (("localhost", 200), ("127.0.0.1", 200), ("box.local", 200), ("evil.example", 421)):
            assert httpx2.get(f"{url}/v1/models", headers={"Host": f"{host}:{port}"}).status_code == status, host


def test_probes_have_a_port_without_a_key_if_one_is_configured():
    flags = ("--in-process", "--api-key", "k", "--probe-port", "0", "--max-running-requests", "3")
    with start_server(NOOP, *flags) as (process, url):
        port = re.search(r"probes at port (\d+)", "".join(wait_ready(process)))[1]
        assert httpx2.get(f"{url}/ready").status_code == 401
        assert httpx2.get(f"http://127.0.0.1:{port}/ready").json()["phase"] == "ready"
        process.send_signal(signal.SIGTERM)
        assert wait_exit(process)[0] == 0


def read_until(process, text):
    """What it prints until a line contains the text."""
    lines = []
    while (line := process.stdout.readline()) and text not in line:
        lines.append(line)
    assert line, "".join(lines)
    return line


def test_a_key_is_withdrawn_without_a_restart(tmp_path):
    clients, operators = tmp_path / "keys", tmp_path / "operator.keys"
    clients.write_text("one\ntwo\n")
    operators.write_text("root\n")
    for file in (clients, operators):
        file.chmod(0o600)
    more = ["--in-process", "--api-key-file", str(clients), "--operator-key-file", str(operators)]
    with start_server(NOOP, *more) as (process, url):

        def statuses():
            keys = ("one", "two", "three", "root")
            return [httpx2.get(f"{url}/ready", headers={"Authorization": f"Bearer {key}"}).status_code for key in keys]

        wait_ready(process)
        assert statuses() == [200, 200, 401, 200]
        clients.write_text("two\nthree\n")
        process.send_signal(signal.SIGHUP)
        assert "1 added, 1 withdrawn" in read_until(process, "API keys reloaded")
        assert statuses() == [401, 200, 200, 200]
        clients.write_text("")  # a mistake: the previous keys stay valid
        process.send_signal(signal.SIGHUP)
        read_until(process, "API keys were not reloaded")
        assert statuses() == [401, 200, 200, 200]


@pytest.mark.parametrize("moment", ["imports", "listening"])
def test_sighup_during_the_start_does_not_end_the_server(moment):
    command = [sys.executable, "-m", "mstar.cli", "serve", str(NOOP), "--port", "0", "--in-process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        try:
            if moment == "imports":
                status = Path(f"/proc/{process.pid}/status")
                while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & 1 << signal.SIGHUP - 1:
                    time.sleep(0.001)
            else:
                process.stdout.readline()
            process.send_signal(signal.SIGHUP)
            read_until(process, "API keys reloaded")
            read_until(process, "ready")
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("mode", "text"), [(0o644, "can read the keys (mode 644)"), (0o602, "can add keys (mode 602)")]
)
def test_a_key_file_that_other_users_can_use_is_reported(mode, text, tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    keys.chmod(mode)
    assert main(["serve", str(NOOP), "--api-key-file", str(keys), "--port", "1", "--host", "203.0.113.1"]) == 1
    output = capsys.readouterr().err
    assert text in output
    assert f"fix: chmod 600 {keys}" in output
    assert ("cannot listen" in output) == (mode == 0o644)  # readable by others is a warning, writable an error


def test_what_cannot_be_served_is_reported_at_once(tmp_path, capsys):
    empty = tmp_path / "keys"
    empty.write_text("\n")
    for wrong in (["--api-key-file", str(empty)], ["--api-key-file", str(tmp_path / "none")], ["--port", "99999"]):
        assert main(["serve", str(NOOP), *wrong]) == 1
        assert "fix:" in capsys.readouterr().err


BROKEN_MODEL = """
from mstar import Component, LoadError, Model, op, walk

class Part(Component):
    def prepare(self) -> None:
        raise LoadError("no weights\\n  fix: fetch them")

    @op
    def same(self, x: int) -> int:
        return x

class Broken(Model):
    def __init__(self) -> None:
        self.part = Part()

    @walk
    def run(self, x: int) -> int:
        return self.part.same(x)
"""


@pytest.mark.parametrize("how", [["--in-process"], pytest.param([], marks=pytest.mark.slow)])
def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(how, tmp_path, capsys):
    (tmp_path / "broken.py").write_text(BROKEN_MODEL)
    assert main(["serve", str(tmp_path / "broken.py"), "--port", "0", *how]) == 1
    assert "no weights" in capsys.readouterr().err


@pytest.mark.slow
def test_json_logs_of_a_failed_start_are_json(tmp_path):
    model = tmp_path / "bad.py"
    model.write_text(BROKEN_MODEL.replace("raise LoadError", "1 / 0, LoadError"))
    command = [sys.executable, "-m", "mstar.cli", "serve", f"{model}:Broken", "--port", "0", "--log-format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, ended.stdout) == (1, "")
    outputs = [line for line in lines if line["event"] == "output of a process"]
    assert any("ZeroDivisionError" in line["output"] and line["pid"] for line in outputs)
    assert (lines[-1]["level"], lines[-1]["error"]) == ("critical", "LaunchError")
    assert "ZeroDivisionError" in lines[-1]["message"]


@pytest.mark.slow
def test_a_server_whose_log_is_not_read_goes_on():
    command = [sys.executable, "-m", "mstar.cli", "serve", f"{PARROT}:Parrot", "--name", "bird", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        url = process.stdout.readline().split()[-1]
        wait_ready(process)
        with httpx2.Client(base_url=url, timeout=5) as client:
            for _ in range(3000):
                assert client.get("/v1/nowhere").status_code == 404  # a log line each
            assert client.get("/health").status_code == 200
            metrics = client.get("/metrics").text
        titles = [path.read_bytes().strip(b"\0") for path in children_of(process.pid)]
        assert {b"mstar: conductor", b"mstar: worker local", b"mstar: standby"} <= {*titles}
        assert 'mstar_process_resident_memory_bytes{process="local"}' in metrics
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def children_of(pid):
    """Command lines of the children of a process."""
    children = [one for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]
    return [Path(f"/proc/{child}/cmdline") for child in children]


@pytest.mark.slow
def test_a_model_in_processes_of_its_own():
    with start_server(NOOP) as (process, url):
        lines = wait_ready(process)
        ups = [line for line in lines if line.endswith(" is up\n")]
        assert [line[:5] for line in ups] == ["[1/2]", "[2/2]"]
        assert {line[6:] for line in ups} == {"conductor is up\n", "local is up\n"}
        answer = httpx2.post(f"{url}/v1/generate", json={"model": "noop", "request": {"steps": 50}})
        assert answer.text.count("event: emission") == 50
        held = httpx2.get(f"{url}/metrics").text
        assert 'mstar_process_threads{process="local"' in held
        assert 'mstar_workers{process="conductor"} 1.0' in held
        process.send_signal(signal.SIGTERM)
        assert wait_exit(process)[0] == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_smollm2_answers_through_the_official_client():
    with start_server(SMOLLM2) as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            ask = {"model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
            whole = client.chat.completions.create(**ask, temperature=0)
            assert whole.choices[0].message.content == "The capital of France is Paris."
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage.completion_tokens == 7
            chunks = list(client.chat.completions.create(**ask, temperature=0, stream=True, max_tokens=3))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of"
            assert chunks[-1].choices[0].finish_reason == "length"
            schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
            params = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
            payload = client.chat.completions.create(**ask, temperature=0, response_format=params)
            assert payload.choices[0].message.content == '{"city": "Paris"}'
        process.send_signal(signal.SIGTERM)
        assert wait_exit(process)[0] == 0


@pytest.mark.slow
def test_a_signal_during_startup_ends_the_server():
    with start_server("smollm2") as (process, url):
        while httpx2.get(f"{url}/ready").json()["total"] == 0:
            time.sleep(0.05)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert wait_exit(process)[0] == 0
        assert time.monotonic() - begun < 5  # it would take longer to load
