"""Restart backoff: exponential delays and the limit of failed starts."""

from mstar.launch.restart_backoff import RestartBackoff


def delay_after(backoff, start, up_s):
    """Delay after a run that started at a time and was up for `up_s` seconds, or never (None)."""
    if up_s is None:
        return backoff.on_exit(start)
    backoff.on_up(start)
    return backoff.on_exit(start + up_s)


def test_short_lived_processes_back_off_exponentially():
    backoff = RestartBackoff()
    waits = [delay_after(backoff, now, 0.5) for now in range(10)]
    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]


def test_long_lived_processes_restart_at_once():
    backoff = RestartBackoff()
    assert [delay_after(backoff, now, 1.0) for now in range(0, 40, 2)] == [0] * 20


def test_exits_are_forgotten_after_a_minute():
    backoff = RestartBackoff()
    assert [delay_after(backoff, now, 0.5) for now in (0, 1, 30, 65)] == [0, 0.1, 0.2, 0.1]


def test_five_failed_starts_are_the_limit():
    backoff = RestartBackoff()
    assert [delay_after(backoff, now, None) for now in range(5)] == [0, 0.1, 0.2, 0.4, None]


def test_a_successful_start_resets_the_count():
    backoff = RestartBackoff()
    uptimes = [None] * 4 + [0.5] + [None] * 4
    assert None not in [delay_after(backoff, now, up_s) for now, up_s in enumerate(uptimes)]


def test_failed_starts_are_forgotten_after_a_minute():
    backoff = RestartBackoff()
    assert None not in [delay_after(backoff, now, None) for now in range(0, 600, 15)]
