"""How long forwards take, by their positions and by what they read of KV caches."""

import random

import pytest

from mstar.nn.lm.speculation.step_costs import StepCosts

SHARE = 0.001


def duration(positions, context=0):
    return 5.0 + 0.5 * positions + 5.0 * SHARE * context


@pytest.mark.parametrize("most", [9, 36, 100_000])
def test_what_is_measured_is_what_forwards_take(most):
    """Forwards that are interrupted now and then, in a KV cache of this size."""
    counts = []

    def run(count):
        counts.append(count)
        assert count <= most
        return duration(count) + (7.0 if len(counts) % 4 == 0 else 0.0)

    costs = StepCosts.measure(run, most, SHARE)
    for positions, context in ((1, 0), (6, 100), (40, 5000)):
        assert costs.seconds(positions, context) == pytest.approx(duration(positions, context))


@pytest.mark.parametrize("wrong", [(50.0, 0.1), (1.0, 5.0), (240.0, 3.0)])
def test_steps_of_several_sizes_correct_what_was_measured(wrong):
    """As after loading on a busy machine. Some steps are interrupted."""
    costs, draws = StepCosts(*wrong, SHARE), random.Random(1)
    for step in range(1500):
        positions, context = draws.choice([1, 1, 5, 9]), draws.randrange(500)
        costs.learn(positions, context, duration(positions, context) * (20 if step % 50 == 7 else 1))
    assert costs.weights_s == pytest.approx(5.0, rel=0.15)
    assert costs.position_s == pytest.approx(0.5, rel=0.25)


def test_steps_of_one_size_do_not_make_others_look_cheap():
    """Positions do not become cheaper beside the weights while a machine is slower all day."""
    costs, draws = StepCosts(5.0, 0.5, SHARE), random.Random(1)
    for _ in range(2000):
        costs.learn(16, 1000, 2.0 * duration(16, 1000) * draws.uniform(0.8, 1.2))
    assert costs.seconds(16, 1000) == pytest.approx(2.0 * duration(16, 1000), rel=0.1)
    assert costs.position_s / costs.weights_s == pytest.approx(0.1, rel=0.3)
