"""Hosts that are namespaces on this machine: each has its own network, its own processes and a Ray node.

They share the files and the kernel, so what is not shown here is a host with another disk or another clock.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
START_S = 60.0
NAME = re.compile(r"mh(\d+)x\d+-")
_numbers = itertools.count()


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20).stdout


def why_unsupported():
    """Why there can be no namespaces here; nothing if there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "making a network namespace needs root and the command ip"
    name = f"mstar-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"a network namespace cannot be made: {error}"
    return ""


def remove_stale_namespaces():
    """Remove what was left behind by those who were killed; their processes died with them."""
    known = [line.split()[0] for line in ip("netns", "list").splitlines()]
    left = {name for name in [*known, *os.listdir(tempfile.gettempdir())] if NAME.match(name)}
    for name in left:
        if Path(f"/proc/{NAME.match(name)[1]}").exists():
            continue
        if name in known:
            ip("netns", "delete", name)
        else:
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def child_of(pid):
    """The one child of a process, once there is one."""
    for _ in range(500):
        if found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(found[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} has started nothing")


class Hosts:
    """So many hosts at one switch, 10.77.0.1 and up; the first is the head of the Ray cluster.

    `address(n)` is a host's IP address. `run(n)` starts `tests/cluster/driver_process.py` there. `kill(n)` kills every process
    of a host at once, as if its power failed; `revive(n)` gives it a new Ray node. `cut(n)` pulls its cable: packets
    vanish both ways and nobody is told; `heal(n)` puts it back. Hosts are counted from 1.
    """

    def __init__(self, count):
        self.count = count
        self.token = secrets.token_hex(16)
        remove_stale_namespaces()
        self._prefix = f"mh{os.getpid()}x{next(_numbers)}"
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self._prefix}-"))
        self._switch = f"{self._prefix}-switch"
        self._first = {}
        """The first process of each host, which takes all others with it."""
        self._drivers = []

    def open(self):
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for number in range(1, self.count + 1):
            name = self.name(number)
            ip("netns", "add", name)
            port = f"port{number}"
            ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth", "netns", name)
            ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth")
            ip("-n", name, "link", "set", "eth", "up")
            ip("-n", name, "link", "set", "lo", "up")
        self.restart(1)
        starting = [self._begin(number) for number in range(2, self.count + 1)]
        for process in starting:
            self._finish(process)

    def close(self):
        for number in list(self._first):
            self.kill(number)
        for driver in self._drivers:
            driver.kill()
        known = [line.split()[0] for line in ip("netns", "list").splitlines()]
        for name in [self._switch, *map(self.name, range(1, self.count + 1))]:
            if name in known:
                ip("netns", "delete", name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def name(self, number):
        return f"{self._prefix}-{number}"

    def address(self, number):
        return f"10.77.0.{number}"

    def environment(self):
        """For processes of the cluster."""
        return os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            # A host that fails is to be noticed within a test.
            "RAY_health_check_initial_delay_ms": "3000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "4",
            "XDG_RUNTIME_DIR": str(self.directory),
            "PYTHONPATH": str(ROOT),
        }

    def inside(self, number, *command, **how):
        """Start a process on a host."""
        into = ["nsenter", f"--target={child_of(self._first[number].pid)}", "--net", "--pid", "--mount", f"--wd={ROOT}"]
        return subprocess.Popen([*into, *command], env=self.environment(), **how)

    def _begin(self, number):
        """Start a host's first process, and Ray."""
        words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name(number)]
        words += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._first[number] = subprocess.Popen([*words, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        words = [f"--node-ip-address={self.address(number)}", "--num-cpus=2", "--object-store-memory=80000000"]
        words += ["--disable-usage-stats", f"--temp-dir={self.directory}/ray{number}"]
        words += (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if number == 1
            else [f"--address={self.address(1)}:{PORT}"]
        )
        with (self.directory / f"ray{number}.txt").open("w") as output:
            return self.inside(number, RAY, "start", *words, stdout=output, stderr=subprocess.STDOUT)

    def _finish(self, process):
        status = process.wait(START_S)
        if status:
            said = "\n".join(path.read_text() for path in self.directory.glob("ray*.txt"))
            raise RuntimeError(f"ray start ended with status {status}:\n{said}")

    def restart(self, number):
        """Let a host run again, with a new Ray node."""
        self._finish(self._begin(number))

    def kill(self, number):
        """Kill every process of a host."""
        first = self._first.pop(number)
        os.kill(child_of(first.pid), signal.SIGKILL)
        first.wait(20)

    def disconnect(self, number):
        """Pull a host's cable."""
        ip("-n", self._switch, "link", "set", f"port{number}", "nomaster")

    def reconnect(self, number):
        """Put it back."""
        ip("-n", self._switch, "link", "set", f"port{number}", "master", "bridge")

    def run(self, number=1):
        """A driver on a host; see `drive.py` for what it can be asked."""
        driver = Driver(self, number)
        self._drivers.append(driver)
        return driver


class Driver:
    """The process that serves, on one of the hosts. `ask("crowd", count=8)` is `crowd` of `drive.py`."""

    module = "tests.cluster.driver_process"
    """What it runs."""

    def __init__(self, hosts, number):
        command = [sys.executable, "-m", self.module]
        self._process = hosts.inside(number, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what, **given):
        """Have something done, and wait for what it gives."""
        self.begin(what, **given)
        return self.answer()

    def begin(self, what, **given):
        self._process.stdin.write(json.dumps([what, given]) + "\n")
        self._process.stdin.flush()

    def answer(self):
        while True:
            line = self._process.stdout.readline()
            assert line, "the driver has ended"
            if line.startswith("{"):
                break
        told = json.loads(line)
        assert "raised" not in told, told["raised"]
        return told["gives"]

    def kill(self):
        """End it at once."""
        if self._process.poll() is None:
            os.kill(child_of(self._process.pid), signal.SIGKILL)  # what entered the host is a child of what let it in
        self._process.wait(20)
        self._process.stdin.close()
        self._process.stdout.close()
