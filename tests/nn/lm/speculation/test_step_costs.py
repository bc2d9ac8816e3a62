"""How long forwards take, by their positions and by what they read of KV caches."""

import pytest

from mstar.nn.lm.speculation.step_costs import StepCosts


def test_durations_are_interpolated_and_extrapolated():
    costs = StepCosts({1: 1.0, 5: 2.0, 9: 6.0})
    assert [costs.seconds(count) for count in (1, 3, 5, 7, 9, 11)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_more_positions_are_never_faster():
    costs = StepCosts({1: 2.0, 9: 1.5, 17: 3.0})
    assert [costs.seconds(count) for count in (1, 5, 9, 17)] == [2.0, 2.0, 2.0, 3.0]


def test_reading_a_cache_takes_its_time():
    costs = StepCosts({1: 1.0, 9: 9.0}, context_s=0.01)
    assert costs.seconds(2, context=300) == pytest.approx(5.0)


@pytest.mark.parametrize("free", [9, 36, 100, 100_000])
def test_what_is_measured_is_what_forwards_take(free):
    """Forwards that are interrupted now and then, in a KV cache of this size."""
    shapes = []

    def run(rows, count, context):
        shapes.append((rows, count, context))
        assert rows * (count + context) <= free
        interruption = 7.0 if len(shapes) % 5 == 0 else 0.0
        return 5.0 + 0.5 * rows * count + 0.01 * rows * context + interruption

    costs = StepCosts.measure(run, free)
    assert costs.seconds(1) == pytest.approx(5.5)
    assert costs.seconds(6) == pytest.approx(8.0)
    if free > 16:
        assert costs.seconds(1, context=1000) == pytest.approx(15.5)


def test_interruptions_do_not_make_a_cache_free_or_less():
    costs = StepCosts.measure(lambda rows, count, context: 5.0 - (rows > 1 and context > 0), 1000)
    assert costs.seconds(1, context=1000) == 5.0
