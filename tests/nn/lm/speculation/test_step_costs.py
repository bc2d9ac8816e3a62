"""How many draft tokens are worth it."""

import pytest

from mstar.nn.lm.speculation.step_costs import StepCosts

FLAT = {1: 1.0, 9: 1.0, 33: 1.0}
"""Weights dominate: any number of positions takes the same time."""
PROPORTIONAL = {1: 1.0, 9: 9.0, 33: 33.0}


def test_durations_are_interpolated_and_extrapolated():
    costs = StepCosts({1: 1.0, 5: 2.0, 9: 6.0})
    assert [costs.seconds(count) for count in (1, 3, 5, 7, 9, 11)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_a_free_position_is_worth_any_chance():
    assert StepCosts(FLAT).best_lengths(2, [[0.5, 0.25], [0.01]]) == [2, 1]


def test_no_position_is_worth_its_price_where_all_cost_the_same():
    assert StepCosts(PROPORTIONAL).best_lengths(16, [[0.9, 0.8, 0.7]] * 16) == [0] * 16


def test_likely_tokens_are_chosen_first():
    costs = StepCosts({1: 1.0, 2: 1.0, 4: 1.0, 5: 9.0, 9: 99.0})
    assert costs.best_lengths(2, [[0.9, 0.8], [0.3, 0.1]]) == [2, 0]


def test_a_draft_is_worth_it_alone_but_not_in_a_large_batch():
    costs = StepCosts({1: 1.0, 9: 1.6, 17: 4.0, 33: 8.0})
    (alone,), crowd = (
        costs.best_lengths(1, [[0.6**count for count in range(1, 9)]]),
        costs.best_lengths(16, [[0.6]] * 16),
    )
    assert alone >= 2
    assert crowd == [0] * 16


def test_requests_without_a_draft_have_none():
    assert StepCosts(FLAT).best_lengths(3, [[], [0.5], []]) == [0, 1, 0]


def test_durations_are_learned_and_interruptions_ignored():
    costs = StepCosts({1: 1.0, 9: 2.0, 17: 4.0})
    for _ in range(100):
        costs.learn(8, 1.2)
    assert costs.seconds(8) == pytest.approx(1.2, rel=0.02)
    before = costs.seconds(1)
    costs.learn(1, 50.0)
    assert costs.seconds(1) == before
