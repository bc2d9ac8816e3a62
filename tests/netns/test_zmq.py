"""Two hosts that lose sight of each other: nothing is lost, they find each other again, and nobody can listen in."""

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
CUT_S = 3.0


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts():
    """Two networks that are joined by one wire."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace needs root and the command ip")
    names = [f"mstar-p{number}-{os.getpid()}" for number in range(2)]
    made = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run(*f"ip -n {names[0]} link add wire type veth peer name wire netns {names[1]}".split())
        for name, ip in zip(names, IPS, strict=True):
            run("ip", "-n", name, "address", "add", f"{ip}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in made:
            for process in run("ip", "netns", "pids", name).split():
                os.kill(int(process), signal.SIGKILL)
            run("ip", "netns", "delete", name)


def cut(hosts, word, sides):
    """Let packets that leave these sides vanish, or (del) pass again."""
    for side in sides:
        run("ip", "-n", hosts[side], "route", word, "blackhole", f"{IPS[1 - side]}/32")


def inside(name, *words):
    command = ["ip", "netns", "exec", name, sys.executable, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("sides", [(0, 1), (1,)], ids=["both ways", "one way"])
def test_a_network_partition_loses_nothing_and_heals_quickly(hosts, tmp_path, sides):
    with inside(hosts[1], actors.__file__, tmp_path, "echo", 0, IPS[1]) as echo:
        address = echo.stdout.readline().strip()
        with inside(hosts[0], "-m", "tests.netns.cross_host_sender", IPS[0], address, CUT_S + 5) as speaker:
            assert speaker.stdout.readline() == "heard\n"
            time.sleep(1.0)
            cut(hosts, "add", sides)
            begin = time.monotonic()
            time.sleep(CUT_S)
            cut(hosts, "del", sides)
            healed = time.monotonic()
            told = json.loads(speaker.stdout.readline())
        echo.kill()
    assert told["is_whole"], told["counters"]
    assert not [at for at in told["times"] if begin + 0.5 < at < healed - 0.2], "the cut was none"
    assert 0 < min(at for at in told["times"] if at >= healed - 0.2) - healed < 2.0
    assert told["bytes"] > 100 * told["said"]
    assert told["seen"] == [CONTROL], f"{SECRET!r} was to be read"
