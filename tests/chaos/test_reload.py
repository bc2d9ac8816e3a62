"""Restart of a worker with published weights: the graph cache makes it a matter of seconds."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from mstar.errors import LoadError
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Message, Sampling
from tests.chaos.deployment import is_fully_up, wait_until
from tests.integration.deployment_clients import REQUEST_TIMEOUT_S, Client, add_frontend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
STREAMS = 8
MAX_SILENCE_S = 8.0
"""Longest silence of a stream after a kill, on a machine whose reload takes less CPU time than this."""
RESTART_S = 2.0
"""Seconds for everything but the reload: detection, replay of the requests."""
MAX_START_S = 8.0
"""Seconds of wall or CPU time from the start of the server to its readiness, with a filled cache."""
WEIGHTS_BYTES = 135e6 * 4
"""Size of the weights in float32, in which they run."""
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module", autouse=True)
def filled_cache():
    """The weights are installed, and the cache has an entry of them."""
    try:
        SMOLLM2_135M.path()
    except LoadError as error:
        pytest.skip(str(error))
    SmolLm2().lm.prepare()


def cpu_s(pid):
    """CPU time of a process and its children that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.nightly
def test_a_killed_worker_is_back_within_seconds(report):
    requests = [
        ChatRequest((Message("user", (f"Tell me a story about the number {number}.",)),), Sampling(max_tokens=96))
        for number in range(STREAMS)
    ]
    with LocalLauncher({"smollm2": "smollm2"}) as local:
        front_end = add_frontend(local)
        wait_until(lambda: is_fully_up(local), 30)
        (worker,) = [name for name in local.stats()["processes"] if name not in ("conductor", "standby")]
        before = [Client(front_end, "smollm2", each, timeout_s=REQUEST_TIMEOUT_S) for each in requests]
        expected = [client.wait(REQUEST_TIMEOUT_S) for client in before]
        standby = local.pid("standby")
        prepared_s = cpu_s(standby)
        clients = [Client(front_end, "smollm2", each, timeout_s=REQUEST_TIMEOUT_S) for each in requests]
        wait_until(lambda: all(len(client.log) > 4 for client in clients), 60)
        os.kill(local.pid(worker), signal.SIGKILL)
        time.sleep(0.5)  # outputs of the killed worker arrive
        counts = [len(client.log) for client in clients]
        wait_until(lambda: all(len(client.log) > count for client, count in zip(clients, counts, strict=True)), 60)
        reload_s = cpu_s(standby) - prepared_s
        for client in clients:
            client.wait(REQUEST_TIMEOUT_S)
        assert local.pid(worker) == standby
        silence_s, resident = max(client.max_gap_s for client in clients), resident_bytes(standby)
    report(
        f"kill of the SmolLM2 worker under {STREAMS} streams: longest silence {silence_s:.1f} s, "
        f"CPU of the reload {reload_s:.1f} s, "
        f"CPU of the standby before it {prepared_s:.1f} s, resident memory {resident / 1e6:.0f} MB"
    )
    values = [[event.value for _, event in client.log[1:-1]] for client in (*expected, *clients)]
    assert [*map(repr, values[:STREAMS])] == [*map(repr, values[STREAMS:])]
    assert silence_s <= max(MAX_SILENCE_S, reload_s + RESTART_S)
    assert resident <= 2 * WEIGHTS_BYTES


@pytest.mark.nightly  # 10.6 s, 7.6 s of CPU on a busy machine: close to the limit, which is the target
def test_the_second_start_of_a_server_takes_seconds(report):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mstar.cli", "serve", "smollm2", "--port", str(port)]
    started = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: is_ready(port), 120)
            wall_s = time.monotonic() - started
            children = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(server.pid)], text=True)
            used_s = sum(cpu_s(int(pid)) for pid in (server.pid, *children.split()))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    report(f"start of `mstar serve smollm2` with a filled cache: ready after {wall_s:.1f} s, {used_s:.1f} s of CPU")
    assert min(wall_s, used_s) <= MAX_START_S


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
