"""Share of the machine that was left to the tests, as a control for limits in seconds.

A limit in seconds holds for a machine that does nothing else. A test that measures real processes multiplies what it
measured by the share of the CPU time that other processes and the hypervisor left to it in the same seconds. Alone the
share is 1, and the limit is the plain one. The share is never taken for less than `MIN_SHARE`: a machine that is busier
than that cannot show that a limit is met.
"""

import os
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIN_SHARE = 0.5
_IDLE = slice(3, 5)
"""Columns idle and iowait of /proc/stat."""


class MachineShare:
    """Measures from its creation, or from the last `restart`."""

    def __init__(self):
        self.restart()

    def restart(self):
        self._start = time.monotonic(), foreign_cpu_s()

    @property
    def share(self):
        """Share of the CPU time since the start that other processes did not take, at least `MIN_SHARE`."""
        start, foreign = self._start
        elapsed_s = (time.monotonic() - start) * os.cpu_count()
        return min(1.0, max(MIN_SHARE, 1 - (foreign_cpu_s() - foreign) / elapsed_s))


class TimeLimit:
    """Asserts that a block takes at most this number of seconds of the machine's share, and at least that one."""

    def __init__(self, at_most_s, *, at_least_s=0.0):
        self._at_most_s, self._at_least_s = at_most_s, at_least_s

    def __enter__(self):
        self._machine, self._start = MachineShare(), time.monotonic()

    def __exit__(self, kind, *_):
        if kind is None:
            elapsed_s, share = time.monotonic() - self._start, self._machine.share
            assert elapsed_s >= self._at_least_s
            assert elapsed_s * share <= self._at_most_s, f"{elapsed_s:.2f} s with {share:.2f} of the machine"


def foreign_cpu_s():
    """CPU seconds since boot of everything but this process and its descendants, with the time of the hypervisor."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - sum(fields[_IDLE])) / TICKS_PER_S - own_cpu_s()


def own_cpu_s():
    """CPU seconds of this process, its descendants, and their descendants that have ended."""
    return sum(_process_ticks(pid) for pid in descendants(os.getpid())) / TICKS_PER_S


def process_cpu_s(pid):
    """CPU seconds of the threads of a process, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _process_ticks(pid):
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    except OSError:  # it has just ended; its parent has its time
        return 0


def descendants(pid):
    """Ids of a process and all its descendants."""
    pids, left = [], [pid]
    while left:
        pids.append(left.pop())
        for path in Path(f"/proc/{pids[-1]}/task").glob("*/children"):
            try:
                left += map(int, path.read_text().split())
            except OSError:  # that thread has just ended
                continue
    return pids
