"""ZeroMQ between two network namespaces: a partition loses nothing, and traffic is encrypted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.netns.cross_host_sender import CONTROL, SECRET
from tests.wire import actors

ROOT = Path(__file__).parents[2]
IPS = ("10.78.9.1", "10.78.9.2")
PARTITION_S = 3.0


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts():
    """Two network namespaces connected by a veth pair."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    names = [f"mstar-p{number}-{os.getpid()}" for number in range(2)]
    created = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            created.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run(*f"ip -n {names[0]} link add wire type veth peer name wire netns {names[1]}".split())
        for name, ip in zip(names, IPS, strict=True):
            run("ip", "-n", name, "address", "add", f"{ip}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in created:
            for process in run("ip", "netns", "pids", name).split():
                os.kill(int(process), signal.SIGKILL)
            run("ip", "netns", "delete", name)


def set_partition(hosts, word, sides):
    """Drop packets that leave these sides, or (del) pass them again."""
    for side in sides:
        run("ip", "-n", hosts[side], "route", word, "blackhole", f"{IPS[1 - side]}/32")


def inside(name, *words):
    command = ["ip", "netns", "exec", name, sys.executable, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("sides", [(0, 1), pytest.param((1,), marks=pytest.mark.nightly)], ids=["both ways", "one way"])
def test_a_network_partition_loses_nothing_and_heals_quickly(hosts, tmp_path, sides):
    with inside(hosts[1], actors.__file__, tmp_path, "echo", 0, IPS[1]) as echo:
        address = echo.stdout.readline().strip()
        with inside(hosts[0], "-m", "tests.netns.cross_host_sender", IPS[0], address, PARTITION_S + 5) as sender:
            assert sender.stdout.readline() == "received\n"
            time.sleep(1.0)
            set_partition(hosts, "add", sides)
            start = time.monotonic()
            time.sleep(PARTITION_S)
            set_partition(hosts, "del", sides)
            healed_at = time.monotonic()
            report = json.loads(sender.stdout.readline())
        echo.kill()
    assert report["is_whole"], report["counters"]
    assert not [time_s for time_s in report["times"] if start + 0.5 < time_s < healed_at - 0.2], (
        "the partition had no effect"
    )
    assert 0 < min(time_s for time_s in report["times"] if time_s >= healed_at - 0.2) - healed_at < 2.0
    assert report["bytes"] > 100 * report["sent"]
    assert report["seen"] == [CONTROL], f"{SECRET!r} was readable in a packet"
