"""What batches are thought to cost."""

import pytest

from mstar.worker.costs import ENOUGH, Costs

KEY = ("m", 0)


def test_between_sizes_that_ran_it_is_in_between():
    costs = Costs()
    for size, seconds in ((2, 0.2), (8, 0.5)):
        costs.learn(KEY, size, seconds)
    assert costs.of(KEY, 2) == 0.2
    assert costs.of(KEY, 5) == pytest.approx(0.35)
    assert costs.of(KEY, 1) == 0.2
    assert costs.of(KEY, 10) == pytest.approx(0.6)


def test_of_one_size_larger_ones_are_in_proportion():
    costs = Costs()
    assert costs.of(KEY, 3) == 0.0
    assert costs.usual(KEY) is None
    costs.learn(KEY, 2, 0.2)
    assert costs.of(KEY, 6) == pytest.approx(0.6)


def test_a_first_batch_that_loads_is_soon_forgotten():
    costs = Costs()
    costs.learn(KEY, 1, 9.0)
    for _ in range(8):
        costs.learn(KEY, 1, 0.01)
    assert costs.of(KEY, 1) < 0.1
    before = costs.usual(KEY)
    costs.learn(KEY, 1, 1.0)
    assert costs.usual(KEY) < before + 0.3


def test_who_gains_by_sharing():
    costs = Costs()
    assert costs.each(KEY) == 0.0
    for _ in range(ENOUGH):
        assert costs.gains(KEY)  # nobody knows: it is tried
        costs.learn(KEY, 1, 0.1)
        costs.learn(KEY, 4, 0.4)
    assert not costs.gains(KEY)
    for _ in range(2 * ENOUGH):
        costs.learn(KEY, 4, 0.2)
    assert costs.gains(KEY)
    assert 0.05 < costs.each(KEY) < 0.1
