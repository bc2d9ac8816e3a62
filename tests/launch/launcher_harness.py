"""A launcher of stand-ins, and questions to the kernel."""

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
    """A front end that keeps what it is told."""

    def __init__(self, name="probe"):
        self.peer = Peer(name, 0)
        self.received = queue.SimpleQueue()

    def receive(self, now, sender, message):
        self.received.put((sender, message))

    def tick(self, now):
        pass

    def next_message(self, kind):
        """The next message of a kind, with its sender."""
        while True:
            sender, message = self.received.get(timeout=10)
            if isinstance(message, kind):
                return sender, message


def make_placement(*workers):
    return {"m": f"[place]\nlm = {list(workers)}".replace("'", '"')}


def wait_until(condition, seconds=10.0):
    """Wait until something holds; how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not come true"
        time.sleep(0.002)
    return time.monotonic() - start


def is_running(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def group_pids(pid):
    """The processes that run in a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
