"""Indexed heap: the name with the smallest of many values that change one at a time.

A conductor asks for the least loaded of its workers for each walk and for each request. Between two questions the
values of a few workers change, so looking at all of them would make a request more expensive in a larger deployment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

_MAX_STALE_RATIO = 4
"""Size of the heap relative to the number of names, from which outdated entries are removed."""


class IndexedHeap:
    """Names by value. Of equal values, the name that comes first in `names` is the smallest."""

    def __init__(self, names: Sequence[str], value: Callable[[str], float]) -> None:
        self._names = names
        self._value = value
        self._changed = {name: index for index, name in enumerate(names)}
        """Names whose value can have changed since the last question, with their index."""
        self._index = {**self._changed}
        self._values: dict[str, float] = {}
        """Values as of the last question."""
        self._heap: list[tuple[float, int]] = []
        """Values and indices. An entry with another value than that of the last question is outdated."""

    def update(self, name: str) -> None:
        """Note that the value of a name can have changed. Names that are not in the heap are ignored."""
        if (index := self._index.get(name)) is not None:
            self._changed[name] = index

    def smallest(self) -> tuple[float, int]:
        """Return the smallest value, and the index of its name."""
        values, heap = self._values, self._heap
        for name, index in self._changed.items():
            value = self._value(name)
            if values.get(name) != value:
                values[name] = value
                heapq.heappush(heap, (value, index))
        self._changed.clear()
        if len(heap) > _MAX_STALE_RATIO * len(self._names):
            heap[:] = [(value, self._index[name]) for name, value in values.items()]
            heapq.heapify(heap)
        while heap[0][0] != values[self._names[heap[0][1]]]:
            heapq.heappop(heap)
        return heap[0]
