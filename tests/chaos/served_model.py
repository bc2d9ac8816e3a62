"""A served model whose worker fails to start while a file exists, in a server process of its own."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2

from tests.launch.launcher_harness import is_running

ROOT = Path(__file__).parents[2]
MODEL = """
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mstar import Component, Latents, LoadError, Model, loop, op, walk


FOLDER = Path(__file__).parent


class Same(Component):
    def prepare(self) -> None:
        if (FOLDER / "broken").exists():
            raise LoadError("no weights\\n  fix: remove the file")
        self._weight = int((FOLDER / "weight").read_text()) if (FOLDER / "weight").exists() else 0
        (FOLDER / "pids" / str(os.getpid())).touch()

    @op
    def same(self, x: int) -> int:
        if (FOLDER / "slow").exists():
            time.sleep(0.02)
        return x + self._weight


class Toy(Model):
    def __init__(self) -> None:
        self.part = Same()

    @walk
    def count(self, steps: int) -> Iterator[Latents]:
        for step in loop(steps=steps):
            yield Latents(self.part.same(step))
"""


class ToyServer:
    """`mstar serve` of the model `toy` with these workers; `cause` is the file that breaks its starts."""

    def __init__(self, directory, workers=("t1",), prefix=(), output=None):
        (directory / "pids").mkdir()
        (directory / "toy.py").write_text(MODEL)
        manifest = f'[models.toy]\nmodel = "toy.py"\n[models.toy.place]\npart = {list(workers)}\n'
        (directory / "mstar.toml").write_text(manifest.replace("'", '"'))
        self.cause = directory / "broken"
        self.weight = directory / "weight"
        """File with the number that is added to each output."""
        self.slow = directory / "slow"
        """File that makes each call take 20 ms."""
        self._prefix = prefix
        self._output = output
        """File that gets the output of the server instead of `lines`."""
        self._directory = directory
        self.lines = []

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [*self._prefix, sys.executable, "-m", "mstar.cli", "serve", "mstar.toml", "--port", str(port)]
        options = {"stderr": subprocess.STDOUT, "cwd": self._directory}
        if self._output is None:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
        else:
            with self._output.open("wb") as output:
                self.process = subprocess.Popen(command, stdout=output, **options)
        self._reader = threading.Thread(target=self._read_output)
        self._reader.start()
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self.wait_for(self._is_ready, 60)
        return self

    def __exit__(self, *exception):
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self._reader.join(5)

    def _read_output(self):
        if self.process.stdout is not None:
            with self.process.stdout as output:
                self.lines.extend(iter(lambda: output.readline().decode(), ""))

    def _is_ready(self):
        try:
            return self.client.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def wait_for_line(self, pattern, seconds=60.0):
        """Wait until the server has printed a line that matches. Returns the match."""
        find_line = lambda: next(filter(None, (re.search(pattern, line) for line in [*self.lines])), None)  # noqa: E731
        return self.wait_for(find_line, seconds)

    def wait_for(self, condition, seconds=60.0):
        """Poll until a condition is true. Returns its value."""
        start = time.monotonic()
        while not (value := condition()):
            assert time.monotonic() - start < seconds, "".join(self.lines[-30:])
            assert self.process.poll() is None, "".join(self.lines[-30:])
            time.sleep(0.01)
        return value

    def generate(self, steps=3, **options):
        return self.client.post("/v1/generate", json={"model": "toy", "request": {"steps": steps}}, **options)

    def stream(self, steps):
        """Values of the outputs of a request, as they arrive."""
        body = {"model": "toy", "request": {"steps": steps}}
        with self.client.stream("POST", "/v1/generate", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and "value" in (content := json.loads(line.removeprefix("data: "))):
                    yield content["value"]

    def metrics(self):
        return dict(line.rsplit(" ", 1) for line in self.client.get("/metrics").text.splitlines() if line[0] != "#")

    def worker_pids(self):
        """Process ids of the workers that run, in the order of their starts."""
        files = sorted((self._directory / "pids").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.name) for path in files if is_running(int(path.name))]
