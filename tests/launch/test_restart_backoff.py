"""Restart backoff: exponential delays with jitter, and no limit of attempts."""

import random

import pytest

from mstar.launch.restart_backoff import JITTER, RestartBackoff


class NoJitter(random.Random):
    """Random numbers in the middle of every range."""

    def uniform(self, a, b):
        return (a + b) / 2


def delay_after(backoff, start, up_s):
    """Delay after a run that started at a time and was up for `up_s` seconds, or never (None)."""
    if up_s is None:
        return backoff.on_exit(start)
    backoff.on_up(start)
    return backoff.on_exit(start + up_s)


def test_short_lived_processes_back_off_exponentially():
    backoff = RestartBackoff(NoJitter())
    waits = [delay_after(backoff, now, 0.5) for now in range(10)]
    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]


def test_long_lived_processes_restart_at_once():
    backoff = RestartBackoff()
    assert [delay_after(backoff, now, 1.0) for now in range(0, 40, 2)] == [0] * 20


def test_a_repeated_report_of_an_up_process_does_not_shorten_its_uptime():
    backoff = RestartBackoff(NoJitter())
    delay_after(backoff, 0, 0.5)
    backoff.on_up(1.0)
    backoff.on_up(2.5)
    assert backoff.on_exit(2.6) == 0


def test_exits_are_forgotten_after_a_minute():
    backoff = RestartBackoff(NoJitter())
    assert [delay_after(backoff, now, 0.5) for now in (0, 1, 30, 65)] == [0, 0.1, 0.2, 0.1]


def test_failed_starts_are_retried_without_end():
    backoff, now, waits = RestartBackoff(NoJitter()), 0.0, []
    for _ in range(2000):
        waits.append(backoff.on_exit(now))
        now += waits[-1] + 40.0  # longer than the window: slow loads
    assert waits[:11] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30]
    assert set(waits[10:]) == {30}
    assert backoff.failed_starts == 2000


def test_a_successful_start_resets_the_count_of_failed_starts():
    backoff = RestartBackoff(NoJitter())
    for now in range(0, 1000, 100):
        delay_after(backoff, now, None)
    backoff.on_up(1000.0)
    assert backoff.failed_starts == 0
    assert backoff.on_exit(1010.0) == 0
    assert backoff.on_exit(1010.2) == 0, "the first failed start is retried at once"


def test_jitter_is_bounded_and_reproducible():
    first, second, other = (RestartBackoff(random.Random(seed)) for seed in (1, 1, 2))
    series = [[backoff.on_exit(now) for now in range(0, 5000, 50)] for backoff in (first, second, other)]
    assert series[0] == series[1] != series[2]
    late = series[0][10:]
    assert max(late) <= 30 * (1 + JITTER)
    assert min(late) >= 30 * (1 - JITTER)
    assert max(late) - min(late) == pytest.approx(2 * 30 * JITTER, rel=0.2)
