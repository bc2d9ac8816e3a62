"""Servers on hosts of their own, whose processes can be killed, and which are started again as systemd does.

Hosts are network namespaces of one machine: see tests/cluster/hosts.py. Here they have no Ray.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.http.client import model_file
from tests.cluster import hosts as namespaces

PORT = 8000
RESTART_AFTER_S = 0.2
"""Seconds after which a launcher that was killed is started again, as by systemd."""
HOST_RESTART_AFTER_S = 3.0
"""Seconds for which a host that was killed is off."""
PROCESSES = {"worker": r"mstar: worker", "conductor": r"mstar: conductor", "front end": r"mstar: front"}
"""Titles of processes, by what is killed."""


class Hosts(namespaces.Hosts):
    """Hosts without Ray."""

    def _start(self, number: int) -> subprocess.Popen[str]:
        words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name(number)]
        words += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init[number] = subprocess.Popen([*words, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        return subprocess.Popen(["true"], text=True)


class Server:
    """`mstar serve` on one host. All servers keep copies of each other's sessions."""

    def __init__(self, hosts: Any, number: int, others: list[int], key_file: Path, frontends: int) -> None:
        self.number = number
        self._hosts = hosts
        urls = [f"http://{hosts.address(other)}:{PORT}" for other in others]
        self._command = [
            *(sys.executable, "-m", "mstar.cli", "serve", f"{model_file('reader')}:Reader", "--name", "reader"),
            *("--host", "0.0.0.0", "--port", str(PORT), "--insecure", "--threads", "1", "--log-level", "warning"),
            *("--frontends", str(frontends), "--max-realtime-sessions", "256"),
            *(word for url in urls for word in ("--session-backup", url)),
            *("--session-backup-key-file", str(key_file)),
        ]
        self._log = (hosts.directory / f"server{number}.txt").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_at: float | None = 0.0
        self._is_host_off = False

    def tick(self, now: float) -> None:
        """Start what is due."""
        if self._process is not None and self._process.poll() is not None and self._restart_at is None:
            self._restart_at = now + RESTART_AFTER_S
        if self._restart_at is None or now < self._restart_at:
            return
        if self._is_host_off:
            self._hosts.restart(self.number)
            self._is_host_off = False
        self._process, self._restart_at = (
            self._hosts.inside(self.number, *self._command, stdout=self._log, stderr=self._log),
            None,
        )

    def kill_process(self, kind: str) -> bool:
        """SIGKILL to a process, or to the launcher. Returns whether there was one."""
        pattern = re.compile(PROCESSES.get(kind, r"-m mstar\.cli serve|mstar: launcher|mstar serve"))
        for pid in map(int, namespaces.ip("netns", "pids", self._hosts.name(self.number)).split()):
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if pattern.search(title) and "nsenter" not in title:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def kill_host(self, now: float) -> None:
        """Cut the host off, without a reset of its connections, and kill all of its processes."""
        self._hosts.disconnect(self.number)
        time.sleep(0.05)
        self._hosts.kill(self.number)
        self._hosts.reconnect(self.number)
        self._is_host_off, self._restart_at = True, now + HOST_RESTART_AFTER_S
