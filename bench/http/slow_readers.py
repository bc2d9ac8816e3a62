"""Five thousand clients that read slowly: how much later the tokens of the other streams are.

A client that reads slower than its model writes fills the buffers between them, and its request is paused
(`max_undelivered_outputs`). Each phase in which 50 active streams are measured is bounded, and so is each wait: for the
connections of the slow readers, until they are paused, and until they are gone. A wait that ends early is reported by
how many slow readers were connected and how many outputs per second were still computed for them.

The lateness of a token is the time since the previous one of its stream beyond the duration of a step. It includes
what slow readers cost the worker (batches, scheduling) and the front end (delivery). A stream without tokens counts as
one that is late by the whole phase.

Workload: a toy model whose op sleeps and computes nothing (bench/models/long_outputs.py). 50 active streams with 20
tokens/s each, the speed of a large model, measured for 5 s before, beside and after 5,000 streams without end, or as
many as the limit of open files allows. Each of these has outputs of 2,000 characters (so that buffers are full within
seconds), a receive buffer of 4 KiB, and reads 100 bytes per second. `max_undelivered_outputs` is 16.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from bench.claims import Claim, Row, print_table
from bench.http.client import Client, ask, figure, model_file, percentile, raise_file_limit, serve
from bench.http.flood import measured_cpu

MAX_READERS, ACTIVE = 5_000, 50
SHARE = 0.92
"""Share of the open files that slow readers take: the server needs others."""
STEP_S, PHASE_S = 0.05, 5.0
ENDLESS = 1_000_000_000
"""Outputs of a stream that its client ends."""
MAX_ADDED_MS = 5.0
"""Maximum growth of the p99 lateness beside slow readers."""
OUTPUT_CHARACTERS, RECEIVE_BUFFER_BYTES = 2_000, 4_096
READ_BYTES, READ_INTERVAL_S = 100, 1.0
MAX_UNDELIVERED = 16
SERVER_FLAGS = ("--max-undelivered-outputs", str(MAX_UNDELIVERED), "--drain-timeout-s", "2", "--log-level", "warning")
CONNECT_TIMEOUT_S, PAUSE_TIMEOUT_S, LEAVE_TIMEOUT_S = 20.0, 40.0, 3.0
PAUSED_OUTPUTS_PER_S = 0.2
"""Outputs per second and slow reader below which they count as paused: what they read makes room for 0.05."""
PAUSED_CORES = 0.5
"""Cores of all processes below which the slow readers are paused: the metric of the outputs is late while a worker is
busy with them."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: discard unsent data, so that the server learns at once that the client has left."""


# ---------------------------------------------------------------- slow readers, in a process of their own
def _connect(port: int) -> socket.socket:
    content = json.dumps(
        {
            "model": "model",
            "stream": True,
            "messages": [{"role": "user", "content": f"{ENDLESS} 0 {OUTPUT_CHARACTERS}"}],
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    connection.settimeout(CONNECT_TIMEOUT_S)
    connection.connect(("127.0.0.1", port))
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    connection.setblocking(False)
    return connection


def _is_open(connection: socket.socket) -> bool:
    """Read a little; whether the connection is still open."""
    try:
        return bool(connection.recv(READ_BYTES))
    except BlockingIOError:
        return True
    except OSError:
        return False


def read_slowly(port: int, count: int) -> None:
    """Connect, and read a little from each connection per interval until standard input is closed.

    Prints the number of connections that are open in the end.
    """
    raise_file_limit()
    readers, parts = [_connect(port) for _ in range(count)], 10
    at, now = 0, time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, now + READ_INTERVAL_S / parts - time.monotonic()))[0]:
        now, at = time.monotonic(), (at + 1) % parts
        readers = [one for index, one in enumerate(readers) if index % parts != at or _is_open(one)]
    print(len(readers), flush=True)
    for one in readers:
        one.close()


# ---------------------------------------------------------------- measurement
async def _stream(port: int) -> list[Client]:
    """The active clients, after one phase. Late tokens do not prolong it."""
    clients = [await ask(port, f"{ENDLESS} {STEP_S} 0") for _ in range(ACTIVE)]
    await asyncio.sleep(PHASE_S)
    for one in clients:
        one.transport.abort()
    await asyncio.gather(*(one.ended for one in clients))
    return clients


class _Rounds:
    """Measured phases, with and without slow readers."""

    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self._pid = pid
        self.late_ms: dict[str, list[float]] = defaultdict(list)
        self.delivery_ms: dict[str, list[float]] = defaultdict(list)
        self.cores: dict[str, dict[str, float]] = {}

    def measure(self, name: str) -> None:
        """Run the active streams once."""
        with measured_cpu(self._pid) as cores:
            clients = asyncio.run(_stream(self._port))
        self.cores[name] = cores
        for client in clients:
            gaps = zip(client.arrived, client.arrived[1:], strict=False)
            self.late_ms[name] += [1000 * (after - before - STEP_S) for before, after in gaps] or [1000 * PHASE_S]
            self.delivery_ms[name] += [1000 * delay for delay in client.delays] or [1000 * PHASE_S]


def _wait(is_done: Callable[[], bool], timeout_s: float, interval_s: float = 0.5) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done() and time.monotonic() < deadline:
        time.sleep(interval_s)


def _outputs_per_s(port: int, seconds: float = 1.0) -> float:
    before = figure(port, "mstar_op_calls_total")
    time.sleep(seconds)
    return (figure(port, "mstar_op_calls_total") - before) / seconds


def _measure(port: int, pid: int, count: int) -> tuple[_Rounds, dict[str, float]]:
    rounds, readers = _Rounds(port, pid), dict[str, float]()
    asyncio.run(_stream(port))  # the first ones make what is made once
    rounds.measure("without")
    command = [sys.executable, "-c", f"from bench.http.slow_readers import read_slowly; read_slowly({port}, {count})"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        _wait(lambda: figure(port, "mstar_responses_in_progress") >= count, CONNECT_TIMEOUT_S)
        readers["connected"] = figure(port, "mstar_responses_in_progress")
        _wait(lambda: _used_cores(pid) < PAUSED_CORES, PAUSE_TIMEOUT_S, 0.0)
        readers["outputs_per_s"] = _outputs_per_s(port)
        rounds.measure("beside")
        readers["still_there"] = _stop(process)
    finally:
        process.kill()
        process.wait()
    _wait(lambda: figure(port, "mstar_responses_in_progress") == 0, LEAVE_TIMEOUT_S)
    rounds.measure("without")
    return rounds, readers


def _used_cores(pid: int, seconds: float = 1.0) -> float:
    with measured_cpu(pid) as cores:
        time.sleep(seconds)
    return sum(cores.values())


def _stop(process: subprocess.Popen[str]) -> float:
    """End the slow readers; the number of their connections that were still open, 0 if they do not answer."""
    try:
        return float(process.communicate(timeout=LEAVE_TIMEOUT_S)[0] or 0)
    except subprocess.TimeoutExpired:
        return 0.0


def slow_readers() -> Claim:
    """The headline."""
    count = min(MAX_READERS, int(SHARE * raise_file_limit()))
    requests = str(2 * (count + ACTIVE))
    flags = ("--max-running-requests", requests, "--max-queued-requests", requests, "--max-connections", requests)
    with serve(model_file("long_outputs"), *flags, "--rate-limit-concurrency", requests, *SERVER_FLAGS) as (port, pid):
        rounds, readers = _measure(port, pid, count)
    print_table(
        [
            Row(f"{what}, {name} slow readers", "ms", values[name])
            for what, values in (("lateness of a token", rounds.late_ms), ("its delivery", rounds.delivery_ms))
            for name in ("without", "beside")
        ]
    )
    p99 = {name: percentile(values, 0.99) for name, values in rounds.late_ms.items()}
    added = round(p99["beside"] - p99["without"], 1)
    are_slow = readers["outputs_per_s"] < PAUSED_OUTPUTS_PER_S * count
    are_served = max(p99.values()) < 1000 * PHASE_S  # else streams without tokens hide what is added
    is_met = (
        added <= MAX_ADDED_MS and are_served and are_slow and readers["connected"] == readers["still_there"] == count
    )
    claim = f"{count} slow readers delay the tokens of {ACTIVE} other streams by at most {MAX_ADDED_MS:.0f} ms (p99)"
    details = {
        **readers,
        "p99_ms": {name: round(value, 1) for name, value in p99.items()},
        "delivery_p99_ms": {name: round(percentile(values, 0.99), 1) for name, values in rounds.delivery_ms.items()},
        "cores": rounds.cores,
    }
    return Claim(claim, added, MAX_ADDED_MS, is_met=is_met, details=details)
