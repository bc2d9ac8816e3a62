"""Two clocks read by a process that is put to sleep in between."""

import time

import pytest

from mstar.wire import clock


def test_a_sleep_between_two_reads_does_not_count(monkeypatch):
    reads = 0

    def monotonic() -> float:
        nonlocal reads
        reads += 1
        if reads == 2:
            time.sleep(0.3)
        return time.monotonic()

    wanted = time.time() - time.monotonic()
    monkeypatch.setattr(clock, "monotonic", monotonic)
    assert clock.measure_clock_offset() == pytest.approx(wanted, abs=0.01)
    assert reads == 2 * clock.CLOCK_SAMPLES
