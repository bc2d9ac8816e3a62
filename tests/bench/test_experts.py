"""The cost model of moving tokens to experts."""

import pytest

from bench.experts import TransferCost


def test_the_break_even_is_where_both_ways_take_the_same_time():
    cost = TransferCost.fit({1: 0.0011, 11: 0.0021, 101: 0.0111})
    assert cost.predict(11) == pytest.approx(0.0021)
    assert cost.predict(round(cost.break_even(weights_s=0.0061))) == pytest.approx(0.0061)
