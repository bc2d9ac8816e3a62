"""Load generator in its own process: when each request was sent, its status, and when its response arrived.

The arrival has two times: `arrived`, when the kernel had the data, and `read`, when the client had read it. The
difference is the lateness of the client process, as is the time from `planned` to `begun`. The clients know enough HTTP
for our own server, and no more.

Workload: Poisson arrivals at a rate, or a fixed number of clients that repeat their request.
"""

from __future__ import annotations

import functools
import json
import random
import re
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

SO_TIMESTAMPNS = 35
"""SO_TIMESTAMPNS, which Python has no name for."""
_RETRY = re.compile(rb"retry-after-ms: (\d+)", re.IGNORECASE)


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are seconds since the crowd began."""

    planned: float
    begun: float
    status: int = 0
    is_whole: bool = False
    arrived: float = 0.0
    """When the last of the answer had come, as the kernel says."""
    read: float = 0.0
    """When the client had it."""
    retry_after: float = 0.0


@dataclass(slots=True)
class LoadSpec:
    """What a crowd is to do: ask at random times, `rate` a second; or `at_once` clients, each again and again."""

    port: int
    text: str
    seconds: float
    rate: float = 0.0
    concurrency: int = 0
    seed: int = 0


def run_load(spec: LoadSpec) -> list[RequestRecord]:
    """What became of each request of a crowd in a process of its own."""
    command = [sys.executable, "-m", "bench.http.load_generator"]
    payload = subprocess.run(command, input=json.dumps(asdict(spec)), stdout=subprocess.PIPE, text=True, check=True)
    return [RequestRecord(**one) for one in json.loads(payload.stdout)]


class _Client:
    """A connection on which something was asked."""

    def __init__(self, spec: LoadSpec, record: RequestRecord) -> None:
        self.record = record
        self.connection = socket.socket()
        self.connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.connection.connect(("127.0.0.1", spec.port))
        self.connection.sendall(_request(spec.text))
        self.connection.setblocking(False)
        self._tail = b""

    def read(self, start: float) -> bool:
        """Note what came; whether there is more to come."""
        try:
            data, stamps, _, _ = self.connection.recvmsg(1 << 16, 64)
        except ConnectionResetError:
            return False
        if not data:
            return False
        requests = self.record
        requests.arrived = requests.read = time.time() - start
        if stamps:  # the kernel starts timestamps a moment after they are first requested
            seconds, nanoseconds = struct.unpack("qq", stamps[0][2])
            requests.arrived = seconds - start + nanoseconds * 1e-9
        if not requests.status:
            requests.status = int(data[9:12])
            results = _RETRY.search(data)
            requests.retry_after = int(results[1]) / 1000 if results else 0.0
        self._tail = (self._tail + data)[-64:]
        requests.is_whole = b"data: [DONE]" in self._tail
        return True


@functools.cache
def _request(text: str) -> bytes:
    body = {"model": "model", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _plan(spec: LoadSpec) -> deque[float]:
    """When to ask."""
    chosen, plan = random.Random(spec.seed), deque[float]()
    at = chosen.expovariate(spec.rate) if spec.rate else spec.seconds
    while at < spec.seconds:
        plan.append(at)
        at += chosen.expovariate(spec.rate)
    return plan


def run(spec: LoadSpec) -> list[RequestRecord]:
    """All clients of a crowd, in one loop of this process."""
    plan, requests, open_, start = _plan(spec), list[RequestRecord](), 0, time.time()
    with selectors.EpollSelector() as selector:
        while True:
            now = time.time() - start
            while (plan and plan[0] <= now) or (open_ < spec.concurrency and now < spec.seconds):
                requests.append(RequestRecord(plan.popleft() if plan else now, time.time() - start))
                client = _Client(spec, requests[-1])
                selector.register(client.connection, selectors.EVENT_READ, client)
                open_ += 1
            if not plan and not open_:
                return requests
            for key, _ in selector.select(max(0.0, plan[0] - now) if plan else None):
                if not key.data.read(start):
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
                    open_ -= 1


if __name__ == "__main__":
    print(json.dumps([asdict(one) for one in run(LoadSpec(**json.load(sys.stdin)))]))
