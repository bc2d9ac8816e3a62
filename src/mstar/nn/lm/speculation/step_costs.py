"""Step costs: how long a forward takes, by its number of positions and by what it reads of KV caches.

A forward reads all weights, computes its positions, and reads the KV caches of its requests. Keys and values are read
as fast per byte as weights, so there are two unknowns, the duration of reading the weights and that of a position. They
are measured when a decoder is loaded, and corrected by every step. Forwards of one size all day say little about other
sizes, so a correction changes each of the two by its part in the step: estimates for other sizes change along.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_MEASURED, _REPEATS = (1, 3, 9, 17, 33), 4
"""Numbers of positions whose forwards are measured, the shortest of several."""
_STEP_WEIGHT = 0.1
"""Part of the difference between a step and its estimate by which the estimate is corrected."""
_MAX_DIFFERENCE = 0.5
"""Maximum share of the estimate by which a step can differ from it: longer ones were interrupted."""


class StepCosts:
    """Durations of forwards."""

    def __init__(self, weights_s: float, position_s: float, position_share: float = 0.0) -> None:
        self.weights_s = weights_s
        """Duration of reading all weights."""
        self.position_s = position_s
        """Duration of computing a position."""
        self._position_share = position_share
        """Size of the keys and values of a position, relative to the weights."""

    @classmethod
    def measure(cls, run: Callable[[int], float], max_positions: int, position_share: float) -> StepCosts:
        """Measure them. `run` runs a forward of a number of positions, up to `max_positions`, and returns its seconds.

        `position_share` is the size of the keys and values of a position, relative to the weights.
        """
        counts = [count for count in _MEASURED if count <= max_positions]
        seconds = np.full(len(counts), np.inf)
        for _ in range(_REPEATS):  # in turns: an interruption does not slow all forwards of one size
            seconds = np.minimum(seconds, [run(count) for count in counts])
        slope, start = np.polyfit(counts, seconds, 1)
        least = 1e-3 * float(seconds[0])  # what is zero could not be corrected
        return cls(max(least, float(start)), max(least, float(slope)), position_share)

    @property
    def context_s(self) -> float:
        """Duration of reading the keys and values of a position."""
        return self.weights_s * self._position_share

    def seconds(self, positions: float, context: float) -> float:
        """Duration of a forward that reads `context` positions of its requests, each once."""
        return self.weights_s + self.position_s * positions + self.context_s * context

    def learn(self, positions: int, context: int, seconds: float) -> None:
        """Correct the estimates by the duration of a forward."""
        estimate = self.seconds(positions, context)
        computing = self.position_s * positions / estimate
        reading = 1 - computing
        difference = min(max(seconds / estimate - 1, -_MAX_DIFFERENCE), _MAX_DIFFERENCE)
        change = _STEP_WEIGHT * difference / (computing**2 + reading**2)
        self.position_s *= 1 + change * computing
        self.weights_s *= 1 + change * reading
