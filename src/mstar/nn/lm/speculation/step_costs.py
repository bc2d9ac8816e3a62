"""Step costs: how long a forward takes, by its number of positions and by what it reads of KV caches.

They are measured once, when a decoder is loaded, and not learned from the steps: a batch size that runs all day would
move only its own estimate, and other numbers of positions would then look cheap beside it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import inf

_MEASURED, _REPEATS = (1, 3, 9, 17, 33), 4
"""Numbers of positions whose forwards are measured, the shortest of several."""
_CONTEXT_ROWS, _CONTEXT = 8, 128
"""Requests, and maximum cached positions of each, of the forward that measures what reading them costs."""


class StepCosts:
    """Durations of forwards."""

    def __init__(self, measured: Mapping[float, float], context_s: float = 0.0) -> None:
        """`measured` has the seconds of forwards of some numbers of positions, two or more.

        `context_s` is the duration of reading the keys and values of one position of one request.
        """
        self._positions = sorted(measured)
        self._seconds = [*accumulate((measured[count] for count in self._positions), max)]
        self._context_s = context_s

    @classmethod
    def measure(cls, run: Callable[[int, int, int], float], free_positions: int) -> StepCosts:
        """Measure them with `run`, which takes a number of requests, and of new and cached positions of each.

        It runs a forward of the new ones, and returns its seconds. The KV cache has room for `free_positions`.
        """
        counts = [count for count in _MEASURED if count <= free_positions]
        context = max(0, min(_CONTEXT, free_positions // _CONTEXT_ROWS - 1))
        shapes = [(1, count, 0) for count in counts]
        if context:
            shapes += [(_CONTEXT_ROWS, 1, 0), (_CONTEXT_ROWS, 1, context)]
        seconds = dict.fromkeys(shapes, inf)
        for _ in range(_REPEATS):  # in turns: an interruption does not slow all forwards of one shape
            for shape in shapes:
                seconds[shape] = min(seconds[shape], run(*shape))
        context_s = 0.0
        if context:
            reading_s = seconds[_CONTEXT_ROWS, 1, context] - seconds[_CONTEXT_ROWS, 1, 0]
            context_s = max(0.0, reading_s) / (_CONTEXT_ROWS * context)
        return cls({count: seconds[1, count, 0] for count in counts}, context_s)

    def seconds(self, positions: float, context: float = 0.0) -> float:
        """Estimated duration of a forward that reads `context` positions of its requests, each once.

        It is interpolated, and extrapolated with the last two measured ones. More positions are never faster.
        """
        index = min(max(bisect.bisect_left(self._positions, positions), 1), len(self._positions) - 1)
        first, last = self._positions[index - 1], self._positions[index]
        before, after = self._seconds[index - 1], self._seconds[index]
        return before + (after - before) / (last - first) * (positions - first) + self._context_s * context
