"""Clients for benches: bare sockets under asyncio, so that thousands of them cost less than what they measure.

A client sends one chat request and records when data comes back. It knows enough HTTP for our own server, and no more.

Workload: none of its own; the benches that use it say what they send.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STAMP = re.compile(rb'"content":"(\d+) "')
START_S = 90.0


class Client(asyncio.Protocol):
    """One request. `ended` is done when the server has closed the connection."""

    def __init__(self, body: dict[str, Any]) -> None:
        content = json.dumps({"model": "model", "stream": True, "temperature": 0} | body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n"
        self._request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.is_whole = False
        self.begun = self.closed = 0.0
        self.arrived: list[float] = []
        """When something came, after the head."""
        self.delays: list[float] = []
        """For each stamp, how many seconds it was under way."""
        self.deltas = 0
        """Pieces of text that came."""

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self.transport = transport
        self.begun = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note what comes."""
        now = time.perf_counter()
        if not self.status:
            self.status = int(data[9:12])
        else:
            self.arrived.append(now)
        self.deltas += data.count(b'"content":"')
        self.delays += [now - int(stamp) / 1e9 for stamp in STAMP.findall(data)]
        self.is_whole = self.is_whole or b"data: [DONE]" in data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as a protocol
        """The end."""
        self.closed = time.perf_counter()
        if not self.ended.done():
            self.ended.set_result(None)


async def ask(port: int, text: str, **body: Any) -> Client:
    """A client that has asked."""
    body = {"messages": [{"role": "user", "content": text}]} | body
    _, client = await asyncio.get_running_loop().create_connection(lambda: Client(body), "127.0.0.1", port)
    return client


@contextmanager
def serve(model: str, *flags: str) -> Iterator[tuple[int, int]]:
    """`mstar serve` with a model, ready: its port, and the process that is the front end."""
    command = [sys.executable, "-m", "mstar.cli", "serve", model, "--name", "model", "--port", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = 0
        for line in server.stdout:
            if "http://" in line and not port:
                port = int(re.findall(r"http://[^ ]*:(\d+)", line)[0])
            if line.startswith("ready"):
                break
        else:
            raise RuntimeError("the server did not start")
        yield port, server.pid
    finally:
        server.terminate()
        server.communicate()


def model_file(name: str) -> str:
    """A model of the benches."""
    return str(Path(__file__).parents[1] / "models" / f"{name}.py")


def percentile(values: list[float], part: float) -> float:
    """The value below which this part of them lies."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def raise_file_limit() -> int:
    """Let this process and its children open as many files as the hard limit allows; return that number."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def figure(port: int, name: str) -> float:
    """A metric of the server, summed over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))
