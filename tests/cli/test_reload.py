"""`mstar serve --reload` as an author uses it: real processes, files that change, a request that runs meanwhile."""

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mstar.cli import main

ROOT = Path(__file__).parents[2]
MODEL = """
import time
from collections.abc import Iterator

from helper import WORD
from mstar import Component, Latents, Model, op, walk


class Speaker(Component):
    @op
    def say(self, seconds: float) -> str:
        time.sleep(seconds)
        return WORD


class Toy(Model):
    def __init__(self) -> None:
        self.part = Speaker()

    @walk
    def speak(self, seconds: float) -> Iterator[Latents]:
        yield Latents(self.part.say(seconds))
"""
TIMEOUT_S = 120.0


class Output:
    """Lines of a process, read by a thread."""

    def __init__(self, process):
        self._lines, self._pipe = queue.Queue(), process.stdout
        self._reader = threading.Thread(target=lambda: [self._lines.put(line) for line in process.stdout], daemon=True)
        self._reader.start()

    def close(self):
        """Wait for the end of the output."""
        self._reader.join(TIMEOUT_S)
        self._pipe.close()

    def wait_for(self, text):
        """All lines up to the first one that contains the text."""
        lines, end = [], time.monotonic() + TIMEOUT_S
        while not lines or text not in lines[-1]:
            lines.append(self._lines.get(timeout=max(0.1, end - time.monotonic())))
        return lines

    def wait_ready(self):
        """URL of the server that became ready."""
        lines = self.wait_for("studio at")
        self.wait_for("ready")
        return re.search(r"API at (http://[\d.:]+)/v1", lines[-1])[1]


@contextmanager
def reloading(model):
    command = [sys.executable, "-m", "mstar.cli", "serve", str(model), "--reload", "--port", "0", "--in-process"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    output = Output(process)
    try:
        yield process, output
    finally:
        process.kill()  # the server ends with it, and so does its output
        process.wait()
        output.close()


@pytest.fixture
def model(tmp_path):
    (tmp_path / "toy.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text('WORD = "one"\n')
    return tmp_path / "toy.py"


def spoken(url, seconds=0.0):
    body = {"model": "toy", "request": {"seconds": seconds}}
    return httpx2.post(f"{url}/v1/generate", json=body, timeout=TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_change_restarts_the_server_and_an_error_waits_for_the_next_change(model):
    helper = model.with_name("helper.py")
    with reloading(model) as (process, output), ThreadPoolExecutor() as pool:
        url = output.wait_ready()
        assert '"one"' in spoken(url).text

        running = pool.submit(spoken, url, 5.0)
        time.sleep(1.5)
        helper.write_text('WORD = "two"\n')
        output.wait_for("changed: helper.py; restarting")
        url = output.wait_ready()
        assert running.result().status_code == 200, "the running request was drained"
        assert '"one"' in running.result().text
        assert '"two"' in spoken(url).text

        helper.write_text("WORD = 1 / 0\n")
        lines = output.wait_for("the server ended with status 1; waiting for a change")
        assert any("ZeroDivisionError" in line for line in lines)
        assert any(re.search(r"helper\.py:1\b", line) for line in lines)
        helper.write_text('WORD = "three"\n')
        assert '"three"' in spoken(output.wait_ready()).text

        process.send_signal(signal.SIGTERM)
        output.wait_for("stopped")
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_server_ends_when_the_reloader_is_killed(model):
    with reloading(model) as (process, output):
        url = output.wait_ready()
        process.kill()
        output.wait_for("stopped")
        with pytest.raises(httpx2.ConnectError):
            spoken(url)


def test_installed_code_does_not_change(monkeypatch, capsys):
    monkeypatch.setattr("mstar.cli.serving.reload._SKIPPED_FOLDERS", ("mstar",))
    assert main(["serve", "hopper", "--reload"]) == 1
    assert "fix: serve a model's .py file" in capsys.readouterr().err
