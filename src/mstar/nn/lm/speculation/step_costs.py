"""Step costs: how long a forward of a number of positions takes, and how many draft tokens are worth it."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

_EMA_WEIGHT = 0.1
"""Weight of the newest step in the moving average."""
_MAX_RATIO = 2.0
"""A step that took longer than this multiple of the estimate was interrupted, and is ignored."""


class StepCosts:
    """Durations of forwards by their number of positions: measured at load time, then a moving average."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured` has the seconds of forwards of some numbers of positions, two or more."""
        self._positions = sorted(measured)
        self._seconds = [measured[count] for count in self._positions]

    def learn(self, positions: int, seconds: float) -> None:
        """Learn the duration of a forward. It moves the estimates of the nearest measured number of positions."""
        estimate = self.seconds(positions)
        if seconds > _MAX_RATIO * estimate:
            return
        at = min(range(len(self._positions)), key=lambda index: abs(self._positions[index] - positions))
        self._seconds[at] *= 1 + _EMA_WEIGHT * (seconds / estimate - 1)

    def seconds(self, positions: int) -> float:
        """Estimated duration of a forward: interpolated, and extrapolated with the last two."""
        index = min(max(bisect.bisect_left(self._positions, positions), 1), len(self._positions) - 1)
        first, last = self._positions[index - 1], self._positions[index]
        before, after = self._seconds[index - 1], self._seconds[index]
        return max(before + (after - before) * (positions - first) / (last - first), min(before, after))

    def best_lengths(self, rows: int, chances: Sequence[Sequence[float]]) -> list[int]:
        """Number of draft tokens to verify for each request, so that the most tokens per second are expected.

        The forward has `rows` requests. `chances` has, for each request with a draft, the probability that its first,
        second, … draft token is right, which never increases.
        """
        order = sorted((-chance, row) for row, own in enumerate(chances) for chance in own)
        expected, best, best_rate = float(rows), 0, rows / self.seconds(rows)
        for count, (negative_chance, _) in enumerate(order, 1):
            expected -= negative_chance
            rate = expected / self.seconds(rows + count)
            if rate > best_rate:
                best, best_rate = count, rate
        lengths = [0] * len(chances)
        for _, row in order[:best]:
            lengths[row] += 1
        return lengths
