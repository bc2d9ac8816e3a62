"""Test hosts as network namespaces on this machine: each has its own network, processes and Ray node.

They share files and kernel, so that other disks and clock skew are not covered.
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
RAY_PORT = 6379
START_TIMEOUT_S = 60.0
NAMESPACE_NAME = re.compile(r"mh(\d+)x\d+-")
_numbers = itertools.count()


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20).stdout


def unsupported_reason():
    """Why network namespaces are not available; empty if they are."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    name = f"mstar-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"cannot create a network namespace: {error}"
    return ""


def remove_stale_namespaces():
    """Remove namespaces and directories of killed test runs."""
    known = [line.split()[0] for line in ip("netns", "list").splitlines()]
    left = {name for name in [*known, *os.listdir(tempfile.gettempdir())] if NAMESPACE_NAME.match(name)}
    for name in left:
        if Path(f"/proc/{NAMESPACE_NAME.match(name)[1]}").exists():
            continue
        if name in known:
            ip("netns", "delete", name)
        else:
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def child_of(pid):
    """Wait for the child of a process. Returns its pid."""
    for _ in range(500):
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} has no child process")


class Hosts:
    """Hosts on one switch, 10.77.0.1 and up; the first is the head of the Ray cluster. Counted from 1.

    `address(n)` is the IP address of a host. `run(n)` starts `tests/cluster/driver_process.py` there. `kill(n)` kills
    all its processes at once, as a power failure does; `restart(n)` gives it a new Ray node. `disconnect(n)` drops its
    packets in both directions; `reconnect(n)` undoes that.
    """

    def __init__(self, count):
        self.count = count
        self.token = secrets.token_hex(16)
        remove_stale_namespaces()
        self._prefix = f"mh{os.getpid()}x{next(_numbers)}"
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self._prefix}-"))
        self._switch = f"{self._prefix}-switch"
        self._init = {}
        """Init process of each host, whose exit kills all others."""
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
        starting = [self._start(number) for number in range(2, self.count + 1)]
        for process in starting:
            self._finish(process)

    def close(self):
        for number in list(self._init):
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
        """Environment of processes of the cluster."""
        return os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            # Detect failed hosts within a test.
            "RAY_health_check_initial_delay_ms": "3000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "4",
            "XDG_RUNTIME_DIR": str(self.directory),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",  # the source of this checkout
        }

    def inside(self, number, *command, **options):
        """Start a process on a host."""
        enter = ["nsenter", f"--target={child_of(self._init[number].pid)}", "--net", "--pid", "--mount", f"--wd={ROOT}"]
        return subprocess.Popen([*enter, *command], env=self.environment(), **options)

    def _start(self, number):
        """Start the init process of a host, and Ray."""
        words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name(number)]
        words += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init[number] = subprocess.Popen([*words, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        words = [f"--node-ip-address={self.address(number)}", "--num-cpus=2", "--object-store-memory=80000000"]
        words += ["--disable-usage-stats", f"--temp-dir={self.directory}/ray{number}"]
        words += (
            ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
            if number == 1
            else [f"--address={self.address(1)}:{RAY_PORT}"]
        )
        with (self.directory / f"ray{number}.txt").open("w") as output:
            return self.inside(number, RAY, "start", *words, stdout=output, stderr=subprocess.STDOUT)

    def _finish(self, process):
        status = process.wait(START_TIMEOUT_S)
        if status:
            output = "\n".join(path.read_text() for path in self.directory.glob("ray*.txt"))
            raise RuntimeError(f"ray start exited with status {status}:\n{output}")

    def restart(self, number):
        """Restart a host with a new Ray node."""
        self._finish(self._start(number))

    def kill(self, number):
        """Kill every process of a host."""
        first = self._init.pop(number)
        os.kill(child_of(first.pid), signal.SIGKILL)
        first.wait(20)

    def disconnect(self, number):
        """Disconnect a host from the switch."""
        ip("-n", self._switch, "link", "set", f"port{number}", "nomaster")

    def reconnect(self, number):
        """Reconnect a host."""
        ip("-n", self._switch, "link", "set", f"port{number}", "master", "bridge")

    def run(self, number=1):
        """Start a driver on a host; see `driver_process.py` for its commands."""
        driver = Driver(self, number)
        self._drivers.append(driver)
        return driver


class Driver:
    """Driver process on a host. `call("run_clients", count=8)` runs that method of `DriverProcess`."""

    module = "tests.cluster.driver_process"
    """Module that the process runs."""

    def __init__(self, hosts, number):
        command = [sys.executable, "-m", self.module]
        self._process = hosts.inside(number, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, command, **arguments):
        """Run a command and return its result."""
        self.send(command, **arguments)
        return self.receive()

    def send(self, command, **arguments):
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self):
        while True:
            line = self._process.stdout.readline()
            assert line, "the driver has exited"
            if line.startswith("{"):
                break
        reply = json.loads(line)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def kill(self):
        """Kill the process."""
        if self._process.poll() is None:
            os.kill(child_of(self._process.pid), signal.SIGKILL)  # the driver is a child of nsenter
        self._process.wait(20)
        self._process.stdin.close()
        self._process.stdout.close()
