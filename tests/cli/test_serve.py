"""`mstar serve` as an operator runs it: a process with a port, ready when it says so, gone when it is told to go."""

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
def start_server(model, *more):
    """A server in a process of its own; its address, and how to read what it prints."""
    command = [sys.executable, "-m", "mstar.cli", "serve", str(model), "--port", "0", *more]
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
        wait_ready(process)
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


@pytest.mark.slow
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
