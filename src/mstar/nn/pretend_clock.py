"""A clock for the pretend GPU: how long its graphs take, and until when the host waits for them.

Without a clock the device has finished what it was given at once. With one, each replay of a graph takes the same time
on the device, after all that was launched before, while the host goes on; the host waits when it reads results. The
pretend GPU computes on the host, which is not part of that time; to measure the host alone, `computes=False` leaves the
results as they were when the graph was captured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class DeviceClock:
    """Time on a device whose graphs take `step_s` seconds each."""

    def __init__(self, step_s: float, *, computes: bool) -> None:
        self._step_s = step_s
        self.computes = computes
        self.idle_at = 0.0
        """Time of the host at which all that was launched is finished."""
        self.busy_s = 0.0
        """Seconds of work that were launched."""

    def launch(self) -> None:
        """Add the work of one graph."""
        self.idle_at = max(self.idle_at, time.perf_counter()) + self._step_s
        self.busy_s += self._step_s


_clocks: list[DeviceClock] = []


@contextmanager
def with_clock(step_s: float, *, computes: bool = True) -> Iterator[DeviceClock]:
    """Let each replay of a graph take this many seconds on the device."""
    clock = DeviceClock(step_s, computes=computes)
    _clocks.append(clock)
    try:
        yield clock
    finally:
        _clocks.remove(clock)


def launch_step() -> bool:
    """Add the work of one graph to the clock, if there is one; return whether it is to be computed."""
    for clock in _clocks:
        clock.launch()
    return all(clock.computes for clock in _clocks)


def device_time() -> float:
    """Time of the host at which the device has finished what was launched so far."""
    return max([time.perf_counter(), *(clock.idle_at for clock in _clocks)])


def sleep_until(host_time: float) -> None:
    """Wait, if the device has a clock."""
    delay_s = host_time - time.perf_counter()
    if _clocks and delay_s > 0:
        time.sleep(delay_s)
