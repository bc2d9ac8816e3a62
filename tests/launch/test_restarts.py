"""When the dead are started again."""

from mstar.launch.restarts import Restarts


def lived(restarts, start, up_s):
    """A life that began at a time and was up for so long, or never; what comes after it."""
    if up_s is None:
        return restarts.died(start)
    restarts.up(start)
    return restarts.died(start + up_s)


def test_short_lives_wait_longer_each_time():
    restarts = Restarts()
    waits = [lived(restarts, now, 0.5) for now in range(10)]
    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]


def test_long_lives_owe_nothing():
    restarts = Restarts()
    assert [lived(restarts, now, 1.0) for now in range(0, 40, 2)] == [0] * 20


def test_deaths_are_forgotten_after_a_minute():
    restarts = Restarts()
    assert [lived(restarts, now, 0.5) for now in (0, 1, 30, 65)] == [0, 0.1, 0.2, 0.1]


def test_five_deaths_at_the_start_are_enough():
    restarts = Restarts()
    assert [lived(restarts, now, None) for now in range(5)] == [0, 0.1, 0.2, 0.4, None]


def test_one_that_came_up_has_its_chances_again():
    restarts = Restarts()
    lives = [None] * 4 + [0.5] + [None] * 4
    assert None not in [lived(restarts, now, up_s) for now, up_s in enumerate(lives)]


def test_deaths_at_the_start_are_forgotten_after_a_minute():
    restarts = Restarts()
    assert None not in [lived(restarts, now, None) for now in range(0, 600, 15)]
