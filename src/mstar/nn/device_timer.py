"""Durations by events of a device: what work takes there, not what the host takes to launch it.

The host does not wait for the device. A duration is known when the device has finished, which is at once for work whose
results the host has read.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mstar.nn.pretend_clock import device_time
from mstar.nn.pretend_gpu import NAME as PRETEND
from mstar.nn.pretend_gpu import count_one


class DeviceTimer:
    """Time from now until `stop`, on a device whose events `new_event` makes. Earlier work is not part of it."""

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._start, self._end = new_event(), new_event()
        self._start.record()

    def stop(self) -> None:
        """Measure what the device was given so far."""
        self._end.record()

    def seconds(self) -> float | None:
        """The duration; None if the device has not finished."""
        return self._start.elapsed_time(self._end) / 1000 if self._end.query() else None


def start_timer(device: torch.device) -> DeviceTimer | None:
    """A timer that runs; None if the device has no events with times."""
    new_event = _event_maker(device)
    return None if new_event is None else DeviceTimer(new_event)


@functools.cache
def _event_maker(device: torch.device) -> Callable[[], Any] | None:
    """What makes events of a device, if they can be recorded and compared."""
    if device.type == PRETEND:
        return PretendEvent
    if device.type == "cpu":
        return None
    new_event = functools.partial(torch.Event, device=device, enable_timing=True)
    try:
        timer = DeviceTimer(new_event)
        timer.stop()
        torch.get_device_module(device).synchronize()
        return None if timer.seconds() is None else new_event
    except Exception:  # noqa: BLE001 - a device without events can fail in any way
        return None


class PretendEvent:
    """A point in the work of the pretend GPU, which works at once: its time is that of the host.

    Inside `busy_device` no event is reached, as on a GPU that has work left when the host has launched it.
    """

    def __init__(self) -> None:
        self._time_s = 0.0

    def record(self) -> None:
        """Mark the end of the work so far."""
        count_one("events")
        self._time_s = device_time()

    def query(self) -> bool:
        """Whether the device has reached it."""
        return not _busy and self._time_s <= time.perf_counter()

    def elapsed_time(self, end: PretendEvent) -> float:
        """Milliseconds to a later event."""
        return (end._time_s - self._time_s) * 1000


_busy: list[None] = []
"""Not empty while the pretend GPU does not finish its work."""


@contextmanager
def busy_device() -> Iterator[None]:
    """The pretend GPU finishes its work when this ends."""
    _busy.append(None)
    try:
        yield
    finally:
        _busy.pop()
