"""Draft lengths: how many draft tokens of each request of a batch are worth being verified.

The rows of a batch get their tokens together. A step has a forward unless every row has its token already, and a row
with its token makes the forward only smaller. So what counts is the average duration of a step, if each row goes on
like this:

1. A row whose draft of l tokens is expected to have m right ones needs a forward in one of 1 + m steps.
   It has 1 + l positions, and reads the KV cache of the row once.
2. A step has a forward with the probability that some row needs one: 1 - product of m / (1 + m).
3. The average duration of a step is this probability times the duration of a forward with the average positions.

Draft tokens are added, the likeliest first, and the number with the shortest average step is chosen. One request alone
gains whole forwards. A large batch hardly ever gains one: there a draft pays only if its positions cost less than a
row, which reads its KV cache, and if it is very likely right. Where little is gained, nothing is verified: the costs
are estimates, and drafts have others, such as copies of logits.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from mstar.nn.lm.speculation.step_costs import StepCosts

_MIN_GAIN = 0.05
"""Minimum share of the average step that drafts must save."""


class Row(NamedTuple):
    """A request of a batch."""

    context: int
    """Number of positions in its KV cache."""
    chance: float
    """Probability that its next draft token is right."""
    tokens: int
    """Number of its draft tokens."""
    is_verified: bool = False
    """Whether they are computed already, so that it needs no forward now."""


def best_lengths(costs: StepCosts, rows: Sequence[Row]) -> list[int]:
    """Number of draft tokens to verify for each row, for the shortest average step."""
    step = _AverageStep(costs, rows)
    has_plain = not all(row.tokens for row in rows)
    candidates = sorted(
        (-chance, number)
        for number, row in enumerate(rows)
        if not row.is_verified
        for chance in (row.chance**count for count in range(1, row.tokens + 1))
        if not has_plain or chance > _least_chance(costs, row)
    )
    best, shortest = 0, step.seconds() * (1 - _MIN_GAIN)
    for count, (negative_chance, number) in enumerate(candidates, 1):
        step.lengthen(number, -negative_chance)
        if (seconds := step.seconds()) < shortest:
            best, shortest = count, seconds
    lengths = [0] * len(rows)
    for _, number in candidates[:best]:
        lengths[number] += 1
    return lengths


def _least_chance(costs: StepCosts, row: Row) -> float:
    """A less likely token never pays in a batch with a row that needs a forward in every step."""
    row_s = costs.position_s + costs.context_s * row.context
    return costs.position_s / row_s if row_s else 1.0


class _AverageStep:
    """The average step of rows, at first with the draft tokens that are verified already.

    A large batch has more than a hundred candidates per step, so adding one takes constant time.
    """

    def __init__(self, costs: StepCosts, rows: Sequence[Row]) -> None:
        self._costs, self._rows = costs, rows
        self._positions = [1 + row.tokens if row.is_verified else 1 for row in rows]
        """Positions of the forward of each row."""
        self._steps = [1 + sum(row.chance**count for count in range(1, positions)) for row, positions in self._both()]
        """Expected number of steps for which a forward of each row is enough."""
        self._mean_positions = sum(map(operator.truediv, self._positions, self._steps))
        self._mean_context = sum(row.context / steps for row, steps in zip(rows, self._steps, strict=True))
        self._drafted = prod(1 - 1 / steps for steps in self._steps if steps > 1)
        """Probability that no row with a draft needs a forward."""
        self._plain = self._steps.count(1)
        """Number of rows without a draft, which need one in every step."""

    def _both(self) -> Iterable[tuple[Row, int]]:
        return zip(self._rows, self._positions, strict=True)

    def lengthen(self, number: int, chance: float) -> None:
        """Add a draft token to a row, with the probability that it and those before it are right."""
        positions, before = self._positions[number], self._steps[number]
        self._positions[number], self._steps[number] = positions + 1, before + chance
        after = before + chance
        self._mean_positions += (positions + 1) / after - positions / before
        self._mean_context += self._rows[number].context * (1 / after - 1 / before)
        if before > 1:
            self._drafted /= 1 - 1 / before
        else:
            self._plain -= 1
        self._drafted *= 1 - 1 / after

    def seconds(self) -> float:
        """Its duration."""
        share = 1.0 if self._plain else 1 - self._drafted
        return share * self._costs.seconds(self._mean_positions / share, self._mean_context / share)
