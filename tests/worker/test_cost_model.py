"""What batches are thought to cost."""

import pytest

from mstar.worker.scheduling.cost_model import MIN_GAIN_SAMPLES, CostModel

KEY = ("m", 0)


def test_between_sizes_that_ran_it_is_in_between():
    costs = CostModel()
    for size, seconds in ((2, 0.2), (8, 0.5)):
        costs.learn(KEY, size, seconds)
    assert costs.predict_s(KEY, 2) == 0.2
    assert costs.predict_s(KEY, 5) == pytest.approx(0.35)
    assert costs.predict_s(KEY, 1) == 0.2
    assert costs.predict_s(KEY, 10) == pytest.approx(0.6)


def test_of_one_size_larger_ones_are_in_proportion():
    costs = CostModel()
    assert costs.predict_s(KEY, 3) == 0.0
    assert costs.typical_s(KEY) is None
    costs.learn(KEY, 2, 0.2)
    assert costs.predict_s(KEY, 6) == pytest.approx(0.6)


def test_a_first_batch_that_loads_is_soon_forgotten():
    costs = CostModel()
    costs.learn(KEY, 1, 9.0)
    for _ in range(8):
        costs.learn(KEY, 1, 0.01)
    assert costs.predict_s(KEY, 1) < 0.1
    before = costs.typical_s(KEY)
    costs.learn(KEY, 1, 1.0)
    assert costs.typical_s(KEY) < before + 0.3


def test_which_ops_gain_by_batching():
    costs = CostModel()
    assert costs.per_call_s(KEY) == 0.0
    for _ in range(MIN_GAIN_SAMPLES):
        assert costs.gains_from_batching(KEY)  # unknown, so batching is tried
        costs.learn(KEY, 1, 0.1)
        costs.learn(KEY, 4, 0.4)
    assert not costs.gains_from_batching(KEY)
    for _ in range(2 * MIN_GAIN_SAMPLES):
        costs.learn(KEY, 4, 0.2)
    assert costs.gains_from_batching(KEY)
    assert 0.05 < costs.per_call_s(KEY) < 0.1
