"""The machine that a benchmark runs on: its processor, and how busy it is with other work.

A speed that was measured beside other work is no property of the code, so a speed benchmark starts on a quiet machine
only. Shares are of all cores together, from /proc/stat. The load average is recorded but decides nothing: for minutes
it shows the run before.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MAX_OTHER_SHARE = 0.10
"""Maximum share of the CPU time that other processes use when a speed benchmark starts."""
MAX_STEAL_SHARE = 0.10
"""Maximum share of the CPU time that the hypervisor gives to other machines."""
SAMPLE_S = 2.0
"""Seconds of one sample."""
SAMPLES = 5
"""Samples before a start is refused: processes of the run before may still be ending."""
STAT = Path("/proc/stat")


class MachineBusy(Exception):
    """Too much other work for a speed benchmark."""


@dataclass(frozen=True)
class Machine:
    """Hardware and interpreter. Names of hosts and folders are not kept."""

    cpu: str
    cores: int
    python: str
    torch: str


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds of the machine since its start, and of this process with the children that it waited for."""

    total: float
    busy: float
    steal: float
    own: float


@dataclass(frozen=True)
class OtherWork:
    """Shares of the CPU time that were not this benchmark's."""

    other: float
    """Other processes. A child that was not waited for counts as one."""
    steal: float

    @property
    def is_busy(self) -> bool:
        """Whether a speed must not be measured beside it."""
        return self.other > MAX_OTHER_SHARE or self.steal > MAX_STEAL_SHARE


def read_machine() -> Machine:
    """This machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return Machine(
        cpu=models[0].partition(":")[2].strip() if models else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        torch=torch,
    )


def read_cpu_times() -> CpuTimes:
    """The counters of the kernel, now."""
    # user nice system idle iowait irq softirq steal; guest time is part of user.
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return CpuTimes(sum(ticks), sum(ticks) - ticks[3] - ticks[4] - ticks[7], ticks[7], sum(os.times()[:4]))


def other_work(begin: CpuTimes, end: CpuTimes) -> OtherWork:
    """What other processes and other machines took between two readings."""
    total = end.total - begin.total or 1.0
    other = (end.busy - begin.busy) - (end.own - begin.own)
    return OtherWork(round(max(other, 0.0) / total, 3), round((end.steal - begin.steal) / total, 3))


def sample_other_work(samples: int = SAMPLES) -> OtherWork:
    """The first quiet sample, or the last of several if none was quiet."""
    begin = read_cpu_times()
    time.sleep(SAMPLE_S)
    sample = other_work(begin, read_cpu_times())
    return sample_other_work(samples - 1) if sample.is_busy and samples > 1 else sample


def require_quiet(sample: OtherWork) -> None:
    """Refuse to measure a speed beside other work."""
    if sample.is_busy:
        raise MachineBusy(
            f"the machine is busy: other processes use {sample.other:.0%} of the CPU time "
            f"(limit {MAX_OTHER_SHARE:.0%}), other machines {sample.steal:.0%} (limit {MAX_STEAL_SHARE:.0%})\n"
            "  fix: end the other work, or pass --busy: the run is then recorded, but does not count for its claim"
        )
