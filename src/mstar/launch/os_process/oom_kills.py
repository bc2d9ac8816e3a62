"""Kills by the out-of-memory killer of the kernel, which has counters for each cgroup and for the host.

The sender of SIGKILL is unknown. A process that the kernel killed for lack of memory can be the victim of its own
request; one that an operator killed is not. The counters tell the two apart:

| counter of the cgroup | counter of the host | cause |
|---|---|---|
| rose | any | crash |
| did not rise, or not readable | rose | unexplained: another cgroup, or one that the process was moved to |
| did not rise, or not readable | did not rise | external |
| did not rise | not readable | external |
| not readable | not readable | unexplained |

Killers in user space (earlyoom, systemd-oomd) have no counter: their kills are external.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from mstar.wire.messages import ExitCause

SAMPLE_INTERVAL_S = 1.0
"""Minimum seconds between two periodic samples."""
EXIT_TIMEOUT_S = 10.0
"""Seconds after a counter rose in which a process killed by SIGKILL counts as killed for it. A process with much memory
takes seconds to exit, and several can be killed at the same time."""
_COUNTER = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class OomKillCounter:
    """One counter of the kernel, and when it rose last."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._path = next((path for path in paths if _read(path) is not None), None)
        self._count = 0 if self._path is None else _read(self._path) or 0
        self._rose_at = float("-inf")

    @property
    def is_readable(self) -> bool:
        """Whether this host has the counter."""
        return self._path is not None

    def sample(self, now: float) -> None:
        """Read the counter."""
        count = None if self._path is None else _read(self._path)
        if count is not None and count != self._count:
            self._count, self._rose_at = count, now

    def has_risen(self, now: float) -> bool:
        """Whether it rose recently."""
        return now - self._rose_at <= EXIT_TIMEOUT_S


class OomKills:
    """The counters of the cgroup of this process, which its children inherit, and of the host. Thread-safe."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._cgroup = OomKillCounter(_cgroup_files(root))
        self._host = OomKillCounter([root / "proc/vmstat"])
        self._sampled_at = clock()

    def tick(self) -> None:
        """Sample the counters, if it is time."""
        with self._lock:
            now = self._clock()
            if now - self._sampled_at >= SAMPLE_INTERVAL_S:
                self._sample(now)

    def cause_of_kill(self) -> ExitCause:
        """Cause of a SIGKILL that has just ended a process of this cgroup."""
        with self._lock:
            now = self._clock()
            self._sample(now)
            if self._cgroup.has_risen(now):
                return ExitCause.CRASH
            is_known = self._cgroup.is_readable or self._host.is_readable
            return ExitCause.UNEXPLAINED if self._host.has_risen(now) or not is_known else ExitCause.EXTERNAL

    def _sample(self, now: float) -> None:
        self._sampled_at = now
        self._cgroup.sample(now)
        self._host.sample(now)


def _cgroup_files(root: Path) -> list[Path]:
    """Files that can have the counter of the cgroup of this process, the most specific one first.

    A container can see its own cgroup as the root of the hierarchy, whatever path the kernel reports.
    """
    mount, paths = root / "sys/fs/cgroup", dict[str, str]()
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths[controllers] = path.lstrip("/")
    version_2 = [mount / paths.get("", "") / "memory.events", mount / "memory.events"]
    version_1 = [mount / "memory" / paths.get("memory", ""), mount / "memory"]
    return version_2 + [folder / "memory.oom_control" for folder in version_1]


def _read(path: Path) -> int | None:
    """The counter in a file of `key value` lines; None if it has none."""
    with suppress(OSError, ValueError):
        if (match := _COUNTER.search(path.read_bytes())) is not None:
            return int(match[1])
    return None
