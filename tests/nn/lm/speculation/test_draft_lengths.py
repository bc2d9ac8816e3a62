"""How many draft tokens are worth it, and that batches are not slower with them."""

import random
import statistics

import pytest

from mstar.nn.lm.speculation.draft_lengths import Row, best_lengths
from mstar.nn.lm.speculation.step_costs import StepCosts

FLAT = StepCosts(1.0, 0.0)
"""Weights dominate: any number of positions takes the same time."""
PROPORTIONAL = StepCosts(0.0, 1.0)
CPU = StepCosts(25.0, 1.35, 0.0001)
"""Milliseconds of a small network on two cores of a CPU: half of a step with 16 requests is not for its positions."""


def test_free_positions_are_worth_it_unless_they_gain_next_to_nothing():
    assert best_lengths(FLAT, [Row(100, 0.1, 3)]) == [3]
    assert best_lengths(FLAT, [Row(100, 0.01, 3)]) == [0]


def test_no_position_is_worth_its_price_where_all_cost_the_same():
    assert best_lengths(PROPORTIONAL, [Row(100, 0.9, 3)] * 16) == [0] * 16
    assert best_lengths(PROPORTIONAL, [Row(100, 0.9, 3)]) == [0]


def test_a_draft_is_as_long_as_its_chance_allows():
    lengths = [best_lengths(CPU, [Row(100, chance, 8)])[0] for chance in (0.01, 0.3, 0.6, 0.9)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0 < lengths[1] < lengths[2] < lengths[3] == 8


def test_a_draft_is_worth_it_alone_but_not_in_a_large_batch():
    assert best_lengths(CPU, [Row(100, 0.6, 8)])[0] >= 2
    assert best_lengths(CPU, [Row(100, 0.6, 8)] * 16) == [0] * 16


def test_no_forward_is_gained_beside_a_row_without_a_draft():
    both = best_lengths(CPU, [Row(0, 0.6, 8), Row(0, 0.6, 8)])
    assert min(both) >= 1
    assert best_lengths(CPU, [Row(0, 0.6, 8), Row(0, 0.6, 0)]) == [0, 0]


def test_in_a_batch_with_a_row_without_a_draft_only_likely_tokens_are_tried():
    """What is left out changes nothing."""
    draws = random.Random(3)
    for _ in range(50):
        rows = [Row(draws.randrange(6000), draws.random(), draws.randrange(1, 5)) for _ in range(6)]
        rows.append(Row(100, 0.5, 0))
        lengths = best_lengths(CPU, rows)
        for row, length in zip(rows, lengths, strict=True):
            row_s = CPU.position_s + CPU.context_s * row.context
            assert not length or row.chance**length * row_s > CPU.position_s


def test_rows_whose_drafts_are_verified_wait_for_the_others():
    rows = [Row(0, 0.9, 8), Row(0, 0.9, 3, is_verified=True)]
    first, second = best_lengths(CPU, rows)
    assert first >= 2
    assert second == 0
    assert best_lengths(CPU, [rows[0], Row(0, 0.9, 0, is_verified=True)])[0] < first


def test_long_caches_make_likely_drafts_worth_it_in_a_large_batch():
    """A row reads its KV cache once, however many positions it has."""
    assert best_lengths(CPU, [Row(4000, 0.8, 4)] * 16) == [4] * 16
    assert best_lengths(CPU, [*[Row(4000, 0.8, 4)] * 15, Row(4000, 0.1, 4)]) == [*[4] * 15, 0]
    assert best_lengths(CPU, [*[Row(4000, 0.8, 4)] * 15, Row(4000, 0.8, 0)]) == [*[4] * 15, 0]
    assert best_lengths(CPU, [Row(10, 0.8, 4)] * 16) == [0] * 16


def test_a_row_without_a_draft_has_none():
    assert best_lengths(CPU, [Row(5, 0.6, 0)]) == [0]


# ---------------------------------------------------------------- batches
def average_step(costs, chances, decide, steps=150):
    """Average duration of the steps of requests whose draft tokens are right with these probabilities.

    The rows of a step get their tokens together, as an engine returns them. `decide` gets those of all rows.
    """
    draws, seconds = random.Random(1), 0.0
    left = [0] * len(chances)
    for _ in range(steps):
        is_right = [draws.random() < chance for chance in chances]
        left = [count - 1 if count and right else -1 for count, right in zip(left, is_right, strict=True)]
        rows = [
            Row(250, chance, 8 if count < 0 else count, count >= 0) for chance, count in zip(chances, left, strict=True)
        ]
        lengths = decide(costs, rows)
        computed = [1 + length for count, length in zip(left, lengths, strict=True) if count < 0]
        if computed:
            seconds += costs.seconds(sum(computed), 250 * len(computed))
        left = [length if count < 0 else count for count, length in zip(left, lengths, strict=True)]
    return seconds / steps


def no_drafts(costs, rows):
    return [0] * len(rows)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("costs", [FLAT, PROPORTIONAL, CPU], ids=["flat", "proportional", "cpu"])
def test_steps_are_not_slower_with_drafts(costs, count):
    chances = random.Random(count)
    ratios = [
        average_step(costs, given, no_drafts) / average_step(costs, given, best_lengths)
        for given in ([chances.random() for _ in range(count)] for _ in range(4))
    ]
    assert min(ratios) > 0.98
    assert statistics.mean(ratios) >= 1.0


def test_requests_that_copy_are_faster_alone_and_not_slower_in_a_large_batch():
    def ratio(chances):
        return average_step(CPU, chances, no_drafts) / average_step(CPU, chances, best_lengths)

    assert ratio([0.9]) > 3
    assert ratio([0.9, 0.9]) > 1.5
    assert ratio([0.9] * 16) >= 1.0
    assert ratio([0.9] * 8 + [0.3] * 8) >= 1.0
