"""The launcher finds conductors that hang."""

import pytest

from mstar.conductor.liveness.watch import ConductorWatch
from mstar.wire.messages import Peer

ONE, TWO = Peer("conductor", 0), Peer("conductor-2", 0)


def watch_until(watch, start, end):
    """Call the watch on every tick; return the first conductor that hangs, and when."""
    for tick in range(round(start * 20) + 1, round(end * 20) + 1):
        if hung := watch.find_hung(tick / 20):
            return hung[0], tick / 20
    return None


def test_a_silent_conductor_is_found_after_five_seconds():
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    assert watch_until(watch, 0.0, 30.0) == (ONE, 5.05)
    assert watch_until(watch, 5.05, 30.0) is None, "once"


def test_a_conductor_that_sends_heartbeats_does_not_hang():
    watch = ConductorWatch()
    for second in range(30):
        watch.on_message(float(second), ONE)
        assert watch_until(watch, second, second + 1) is None


def test_a_conductor_that_computes_has_a_minute():
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    for second in range(60):
        watch.on_computing(float(second), ONE)
        assert watch_until(watch, second, second + 1) is None
    assert watch_until(watch, 60.0, 61.0) == (ONE, 60.05)


@pytest.mark.parametrize("pause_s", [4.0, 60.0, 3600.0])
def test_a_pause_of_the_launcher_does_not_count(pause_s):
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    assert watch_until(watch, 0.0, 0.5) is None
    assert watch.find_hung(0.5 + pause_s) is None
    watch.on_message(0.6 + pause_s, ONE)
    assert watch_until(watch, 0.6 + pause_s, 5.0 + pause_s) is None


def test_two_conductors_are_not_replaced_at_once():
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    watch.on_message(0.1, TWO)
    assert watch_until(watch, 0.1, 10.0) == (ONE, 5.05)
    assert watch_until(watch, 5.05, 10.0) == (TWO, 6.05)


def test_of_two_conductors_that_fall_silent_together_one_is_replaced_after_the_other():
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    watch.on_message(0.0, TWO)
    assert watch_until(watch, 0.0, 10.0) == (ONE, 5.05)
    assert watch_until(watch, 5.05, 10.0) == (TWO, 6.05)


def test_an_exited_conductor_is_not_watched():
    watch = ConductorWatch()
    watch.on_message(0.0, ONE)
    watch.forget(ONE)
    assert watch_until(watch, 0.0, 10.0) is None
