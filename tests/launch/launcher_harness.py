"""Launcher with stub processes, a probe front end, and process checks."""

import queue
import sys
import time
from pathlib import Path

from mstar.launch.local_launcher import LocalLauncher
from mstar.wire.messages import Peer

STUB_PROCESS = Path(__file__).with_name("stub_process.py")


class StubLauncher(LocalLauncher):
    command = (sys.executable, str(STUB_PROCESS))


class Probe:
    """Front end that records its messages."""

    def __init__(self, name="probe"):
        self.peer = Peer(name, 0)
        self.received = queue.SimpleQueue()

    def receive(self, now, sender, message):
        self.received.put((sender, message))

    def tick(self, now):
        pass

    def next_message(self, kind):
        """Wait for the next message of a type. Returns it with its sender."""
        while True:
            sender, message = self.received.get(timeout=10)
            if isinstance(message, kind):
                return sender, message


def make_placement(*workers):
    return {"m": f"[place]\nlm = {list(workers)}".replace("'", '"')}


def wait_until(condition, seconds=10.0):
    """Poll a condition until it is true. Returns the elapsed seconds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"condition not met within {seconds} s"
        time.sleep(0.002)
    return time.monotonic() - start


def is_running(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def group_pids(pid):
    """Process ids of a process group."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            pids.append(int(stat.parent.name))
    return pids
