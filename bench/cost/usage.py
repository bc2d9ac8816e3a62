"""What a server has used so far, by process: CPU time and context switches.

The kernel counts all of it, so that the figures do not depend on how busy the machine is, as a duration would. CPU time
is that of the scheduler, in ns; `utime` and `stime` count ticks of 10 ms.

Workload: none; it reads /proc.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

ROLES = ("front end", "conductor", "worker")


@dataclass(frozen=True)
class Usage:
    """Counters of a process."""

    cpu_us: float = 0.0
    switches: float = 0.0
    """Context switches."""

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(Usage)))

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Usage)))

    def __mul__(self, factor: float) -> Usage:
        return Usage(*(getattr(self, one.name) * factor for one in fields(Usage)))


Roles = dict[str, Usage]
"""Usage by role of the process."""


def read_usage(pid: int) -> Usage:
    """The counters of a process, over its threads."""
    cpu_ns = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int(task.joinpath("schedstat").read_text().split()[0])
        status = task.joinpath("status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
    return Usage(cpu_ns / 1000, switches)


def read_tree(pid: int) -> Usage:
    """The counters of a process and of all processes that it started, directly or not."""
    return sum((read_tree(child) for child in _children(pid)), read_usage(pid))


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in task.joinpath("children").read_text().split()
    ]


def read_roles(pid: int) -> Roles:
    """The counters of a server by role; those of several workers are added."""
    used = {"front end": read_usage(pid)}
    for child in _children(pid):
        name = Path(f"/proc/{child}/comm").read_text().strip()
        role = next((role for role in ROLES if name.startswith(role)), None)
        if role is not None:
            used[role] = used.get(role, Usage()) + read_usage(child)
    return used


@contextmanager
def spending(pid: int) -> Iterator[Roles]:
    """What a server uses while the block runs, known after it."""
    spent, before = Roles(), read_roles(pid)
    yield spent
    spent |= {role: used - before.get(role, Usage()) for role, used in read_roles(pid).items()}


def scale(used: Roles, factor: float) -> Roles:
    """A multiple of the usage."""
    return {role: one * factor for role, one in used.items()}
