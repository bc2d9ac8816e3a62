"""`mstar serve` in a process of its own whose processes can be frozen (SIGSTOP), with streaming HTTP clients."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[2]
PARROT = ROOT / "tests" / "server" / "toy_models.py"
STREAMS = 8
TEXT = "slow, but whole and equal, each letter once"
"""What a stream must deliver: the model repeats it, 10 ms per letter of each of the streams."""


class FrozenServer:
    """A running server."""

    def __init__(self, process, url):
        self.process = process
        self.url = url

    def pids(self):
        """Pid of each peer that listens on a unix socket, such as "conductor.0"; the front end is the server."""
        listening = {}
        for line in Path("/proc/net/unix").read_text().splitlines():
            if match := re.search(r" (\d+) \S*/mstar\S*/([\w-]+\.\d+)$", line):
                listening.setdefault(f"socket:[{match[1]}]", match[2])
        own = _open_files(self.process.pid)  # a child that is being started has them too
        pids = {listening[file]: pid for pid in self.tree() for file in _open_files(pid) & listening.keys() - own}
        return pids | {"frontend": self.process.pid}

    def tree(self):
        """Pids of the server and all its descendants."""
        pids, left = [], [self.process.pid]
        while left:
            pids.append(left.pop())
            with suppress(OSError):  # a thread or the process has exited meanwhile
                for path in Path(f"/proc/{pids[-1]}/task").glob("*/children"):
                    left += map(int, path.read_text().split())
        return pids

    @contextmanager
    def frozen(self, kind):
        """Freeze all processes ("tree") or the one of a peer."""
        pids = self.tree() if kind == "tree" else [self.pids()[kind]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:  # it was replaced
                    continue


def _open_files(pid):
    files = set()
    with suppress(FileNotFoundError):  # the process has exited meanwhile
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                files.add(str(link.readlink()))
    return files


@contextmanager
def start_frozen_server(tmp_path, *workers):
    """A server whose model is on these workers."""
    placement = tmp_path / "placement.toml"
    placement.write_text(f"[place]\nletters = {list(workers)}\n".replace("'", '"'))
    command = [sys.executable, "-m", "mstar.cli", "serve", f"{PARROT}:Parrot", "--name", "bird", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--placement", str(placement)], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
    try:
        url = process.stdout.readline().split()[-1]
        while (line := process.stdout.readline()) and line != "ready\n":
            pass
        assert line == "ready\n", (tmp_path / "log").read_text()
        yield FrozenServer(process, url)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class StreamClient(threading.Thread):
    """One streamed chat completion."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.letters = []
        self.times = [time.monotonic()]
        self.error = ""
        self._url = url
        self.start()

    def run(self):
        body = {"model": "bird", "stream": True, "messages": [{"role": "user", "content": TEXT}]}
        try:
            with httpx2.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=None) as response:
                for line in response.iter_lines():
                    self._on_line(line)
        except Exception as error:  # noqa: BLE001 - reported by the test
            self.error = repr(error)

    def _on_line(self, line):
        if match := re.search(r'"content": ?"([^"]*)"', line):
            self.letters.append(match[1])
            self.times.append(time.monotonic())
        elif '"error"' in line:
            self.error = line

    @property
    def max_gap_s(self):
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


def check_streams(clients, seconds):
    """Wait for all streams; each must be whole and equal."""
    deadline = time.monotonic() + seconds
    for client in clients:
        client.join(max(0.0, deadline - time.monotonic()))
        assert not client.is_alive(), f"a stream has not ended: {client.letters}"
        assert (client.error, "".join(client.letters)) == ("", TEXT)
