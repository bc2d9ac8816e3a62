"""16 live calls over three servers on three hosts, while something is killed every 5 s.

Each host runs a whole server: launcher, conductor, front ends and a worker. The three keep copies of each other's
sessions. In turn a worker, a conductor, a front end, a launcher and a whole host is killed, each time of another host.
The callers are on a fourth host, behind a TCP load balancer that checks `/ready` (`callers.py`).

The hosts are network namespaces of one machine and share its cores, with the callers and the starting processes too.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.calls.servers import PORT, Hosts, Server
from bench.claims import Claim
from tests.cluster import hosts as namespaces

CALLS, KILL_INTERVAL_S = 16, 5.0
KINDS = ("worker", "conductor", "front end", "launcher", "host")
SERVERS = 3
MIN_OTHERS = 1
"""A launcher or host is killed only while this many other servers are ready: no call can survive the loss of all."""
TARGET = 0.99


def calls(seconds: float = 180.0, frontends: int = 2) -> Claim:
    """Hold calls, and kill."""
    if why := namespaces.unsupported_reason():
        raise RuntimeError(f"{why}\n  fix: run it as root on Linux with iproute2")
    hosts = Hosts(SERVERS + 1)
    try:
        hosts.open()
        killed, figures = _run(hosts, seconds, frontends)
    finally:
        hosts.close()
    print(json.dumps(figures, indent=1))
    share = 1 - figures["late_seconds"] / max(1, figures["seconds"])
    is_whole = figures["different"] == figures["doubled"] == 0 and figures["ended"] == CALLS
    claim = (
        f"{CALLS} live calls with real speech over three servers on three hosts (network namespaces of one machine), "
        f"something killed every {KILL_INTERVAL_S:g} s: with 1 s of playback buffer no underrun in at least "
        f"{100 * TARGET:g} % of seconds, each sound byte-equal to the undisturbed run, each call ends by itself"
    )
    more = figures | {"killed": dict(killed), "of": seconds}
    return Claim(claim, round(share, 4), TARGET, share >= TARGET and is_whole, more)


class Callers:
    """The process with the callers, and what it has printed."""

    def __init__(self, hosts: Any, seconds: float) -> None:
        servers = json.dumps([(hosts.address(number), PORT) for number in range(1, SERVERS + 1)])
        command = (sys.executable, "-m", "bench.calls.callers", servers, str(CALLS), str(seconds))
        self._process = hosts.inside(SERVERS + 1, *command, stdout=subprocess.PIPE, text=True)
        self.ready = set[str]()
        """Addresses of the servers that are ready."""
        self.are_open = threading.Event()
        self.figures: dict[str, Any] | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            content = json.loads(line)
            if "ready" in content:
                self.ready = {*content["ready"]}
            elif "seconds" in content:
                self.figures = content
            self.are_open.set()

    @property
    def is_running(self) -> bool:
        """Whether the calls go on."""
        return self.figures is None and self._process.poll() is None


def _run(hosts: Any, seconds: float, frontends: int) -> tuple[Counter[str], dict[str, Any]]:
    key_file = Path(hosts.directory) / "backup-key"
    key_file.write_text(secrets.token_hex(16))
    numbers = range(1, SERVERS + 1)
    servers = [Server(hosts, n, [other for other in numbers if other != n], key_file, frontends) for n in numbers]
    callers, killed, turn = Callers(hosts, seconds), Counter[str](), 0
    while not callers.are_open.is_set() and callers.is_running:
        _tick(servers)
    kill_at = end_at = time.monotonic() + KILL_INTERVAL_S
    end_at += seconds
    while callers.is_running:
        _tick(servers)
        now = time.monotonic()
        if kill_at <= now < end_at:
            kill_at += KILL_INTERVAL_S
            turn = _kill(servers, hosts, callers, killed, turn)
    if callers.figures is None:
        logs = "\n".join(path.read_text() for path in sorted(Path(hosts.directory).glob("server*.txt")))
        raise RuntimeError(f"the callers have exited\n{logs[-4000:]}")
    return killed, callers.figures


def _tick(servers: list[Server]) -> None:
    for server in servers:
        server.tick(time.monotonic())
    time.sleep(0.02)


def _kill(servers: list[Server], hosts: Any, callers: Callers, killed: Counter[str], turn: int) -> int:
    """Kill the next kind of the next host that is ready. Returns the next turn."""
    kind = KINDS[turn % len(KINDS)]
    order = [servers[(turn + offset) % len(servers)] for offset in range(len(servers))]
    victims = [server for server in order if hosts.address(server.number) in callers.ready]
    if kind in ("launcher", "host") and len(victims) <= MIN_OTHERS:
        print(f"not killed: {kind}, only {len(victims)} servers are ready", flush=True)
        return turn
    for victim in victims:
        if kind == "host":
            victim.kill_host(time.monotonic())
        elif not victim.kill_process(kind):
            continue
        killed[kind] += 1
        print(f"killed: {kind} of host {victim.number}; ready: {sorted(callers.ready)}", flush=True)
        return turn + 1
    print(f"not killed: no {kind} runs on a server that is ready", flush=True)
    return turn
