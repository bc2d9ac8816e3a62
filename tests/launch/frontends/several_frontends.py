"""A server with several front ends for tests: real processes on loopback, and clients of a chosen front end."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[3]
MANIFEST = f"""
[models.bird]
model = "{ROOT / "tests" / "server" / "toy_models.py"}:Parrot"

[models.dreamer]
model = "{ROOT / "tests" / "server" / "toy_robot_models.py"}:MultiTurnWorldModel"
"""
START_TIMEOUT_S = 120.0


class FrontendServer:
    """`mstar serve --frontends N` in a process of its own."""

    def __init__(self, process, log, key, until):
        self.process = process
        self.key = key
        self._log = log
        self._clients = []
        self.url = self.wait_for(r"listening at (\S+)")[1]
        self.wait_for(until)

    @property
    def output(self):
        """What it has printed and logged."""
        return self._log.read_text()

    def wait_for(self, pattern, seconds=START_TIMEOUT_S):
        """Wait until its output matches."""
        deadline = time.monotonic() + seconds
        while (match := re.search(pattern, self.output, re.MULTILINE)) is None:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return match

    def client(self, key=None):
        """Client with connections of its own, until `close`."""
        key = self.key if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx2.Client(base_url=self.url, headers=headers, timeout=20)
        self._clients.append(client)
        return client

    def close(self):
        """Close all clients."""
        for client in self._clients:
            client.close()

    def clients(self):
        """A client of front end 1 and one of front end 2, each with a connection to it, and a response that it has."""
        by_number = {}
        for _ in range(64):
            client = self.client()
            created = client.post("/v1/responses", json={"model": "bird", "input": "hello"})
            assert created.status_code == 200, created.text
            number = created.json()["id"].split("_")[1]
            by_number.setdefault(number, (client, created.json()["id"]))
            if len(by_number) == 2:
                return by_number["f1"], by_number["f2"]
        raise AssertionError(f"all connections are at {[*by_number]}")

    def figures(self, name):
        """Series of a metric: labels and value."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        series = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
        return [(dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.rpartition(" ")[2])) for line in series]

    def by_process(self, name, processes, label="process"):
        """Labels and value of a metric by process, once it has these: one that is busy is missing on a page."""
        deadline = time.monotonic() + 20
        while (
            not {*processes}
            <= (series := {labels[label]: (labels, value) for labels, value in self.figures(name)}).keys()
        ):
            assert time.monotonic() < deadline, series
            time.sleep(0.2)
        return series

    def pid(self, frontend):
        """Process id of a front end."""
        return int(self.by_process("mstar_process_info", [frontend])[frontend][0]["pid"])

    def stop(self):
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def serve_frontends(folder, *flags, key="", count=2, models=MANIFEST, until=r"^ready$"):
    """A server, once its output matches `until`."""
    manifest, log = folder / "mstar.toml", folder / "log"
    manifest.write_text(models)
    command = [sys.executable, "-m", "mstar.cli", "serve", str(manifest), "--port", "0", "--frontends", str(count)]
    with log.open("w") as output:
        process = subprocess.Popen([*command, *flags], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        with closing(FrontendServer(process, log, key, until)) as server:
            yield server
    finally:
        process.kill()
        process.wait()


def stream_response(client, text):
    """Start a streamed response; returns its id and an iterator of its text deltas."""
    body = {"model": "bird", "input": text, "stream": True}
    response = client.send(client.build_request("POST", "/v1/responses", json=body), stream=True)
    events = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: "))
    created = next(events)
    return created["response"]["id"], (event["delta"] for event in events if "output_text.delta" in event["type"])
