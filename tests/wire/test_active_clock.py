"""The clock of an observer does not advance while the observer is paused."""

import pytest

from mstar.wire.active_clock import MAX_STEP_S, ActiveClock


def test_short_steps_are_real_time():
    clock = ActiveClock()
    assert [clock.advance(5.0 + step / 10) for step in range(30)] == [5.0 + step / 10 for step in range(30)]


@pytest.mark.parametrize("pause_s", [0.6, 60.0, 3600.0])
def test_a_pause_counts_as_one_step(pause_s):
    clock = ActiveClock()
    before = clock.advance(10.0)
    assert clock.advance(10.0 + pause_s) - before == pytest.approx(MAX_STEP_S)
    assert clock.advance(10.1 + pause_s) - before == pytest.approx(MAX_STEP_S + 0.1)
    assert clock.paused_s == pytest.approx(pause_s - MAX_STEP_S)


def test_time_passes_for_an_observer_that_is_always_late():
    clock = ActiveClock()
    start = clock.advance(0.0)
    assert clock.advance(1.0) - start == MAX_STEP_S
    assert clock.advance(2.0) - start == 2 * MAX_STEP_S


def test_an_earlier_time_is_no_pause():
    clock = ActiveClock()
    clock.advance(2.0)
    clock.advance(1.9)
    clock.advance(2.1)
    assert clock.paused_s == 0.0
