"""A launcher of stand-ins, and questions to the kernel."""

import queue
import sys
import time
from pathlib import Path

from mstar.launch.local import Local
from mstar.wire.messages import Peer

STAND_IN = Path(__file__).with_name("stand_in.py")


class LocalStandIns(Local):
    command = (sys.executable, str(STAND_IN))


class Probe:
    """A front end that keeps what it is told."""

    def __init__(self, name="probe"):
        self.peer = Peer(name, 0)
        self.told = queue.SimpleQueue()

    def receive(self, now, sender, message):
        self.told.put((sender, message))

    def tick(self, now):
        pass

    def hears(self, kind):
        """The next message of a kind, with its sender."""
        while True:
            sender, message = self.told.get(timeout=10)
            if isinstance(message, kind):
                return sender, message


def placed(*workers):
    return {"m": f"[place]\nlm = {list(workers)}".replace("'", '"')}


def until(condition, seconds=10.0):
    """Wait until something holds; how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not come true"
        time.sleep(0.002)
    return time.monotonic() - start


def lives(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def group(pid):
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
