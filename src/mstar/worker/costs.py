"""What batches cost, learned from those that ran: by op and by how many calls share it. Nothing is decided here."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from mstar.plan.frame import Frame
from mstar.plan.tables import Call, Lead

Key = tuple[str, int]
"""A model, and the number of a batch key in its plans."""
WEIGHT, LIGHTER = 0.2, 0.5
"""How much the newest batch counts in what an op is thought to cost, and if it was cheaper than that: the first batches
of an op load and compile, and must not be remembered for long."""

GAIN = 0.85
"""Calls gain by sharing a batch if each takes no more than this part of what it takes by itself."""
ENOUGH, MANY = 8, 32
"""So many batches tell whether they do; after so many each further one counts no less."""


@dataclass(slots=True)
class _Mean:
    count: int = 0
    value: float = 0.0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, MANY)
        self.value += (value - self.value) / self.count


class Costs:
    """Seconds, by batch key."""

    def __init__(self) -> None:
        self._usual: dict[Key, float] = {}
        self._sized: dict[Key, dict[int, float]] = {}
        self._each: dict[Key, tuple[_Mean, _Mean]] = {}
        """What a call took by itself, and its part of a batch that it shared."""

    def learn(self, key: Key, size: int, seconds: float) -> None:
        """A batch of so many calls has taken so long."""
        self._usual[key] = _nearer(self._usual.get(key, seconds), seconds)
        sized = self._sized.setdefault(key, {})
        sized[size] = _nearer(sized.get(size, seconds), seconds)
        if key not in self._each:
            self._each[key] = (_Mean(), _Mean())
        self._each[key][size > 1].add(seconds / size)

    def usual(self, key: Key) -> float | None:
        """How long a batch has taken lately, as large as they were."""
        return self._usual.get(key)

    def of(self, key: Key, size: int) -> float:
        """How long a batch of so many calls will take; 0 if none has run yet."""
        sized = self._sized.get(key)
        if sized is None:
            return 0.0
        if size in sized:
            return sized[size]
        known = sorted(sized)
        place = bisect_left(known, size)
        low, high = known[max(0, place - 1)], known[min(place, len(known) - 1)]
        if low < size < high:
            return sized[low] + (sized[high] - sized[low]) * (size - low) / (high - low)
        if size < low:
            return sized[low]  # no more than a larger one
        slope = (sized[low] - sized[known[0]]) / (low - known[0]) if low > known[0] else sized[low] / low
        return sized[low] + max(0.0, slope) * (size - low)

    def each(self, key: Key) -> float:
        """How long a call has taken lately, its part of a batch; 0 if none has run yet."""
        known = [mean.value for mean in self._each.get(key, ()) if mean.count]
        return min(known, default=0.0)

    def gains(self, key: Key) -> bool:
        """Whether calls that share a batch take less time than each by itself, as far as is known."""
        apart, shared = self._each.get(key, (_Mean(), _Mean()))
        is_known = min(apart.count, shared.count) >= ENOUGH
        return not is_known or shared.value < GAIN * apart.value

    def until(self, model: str, call: Call, lead: Lead, frame: Frame) -> float:
        """From a ready call, itself counted, to the emission that it leads to: seconds."""
        usual = self._usual
        total = usual.get((model, call.key), 0.0)
        total += sum(count * usual.get((model, key), 0.0) for key, count in lead.keys)
        for one in lead.rounds:
            place = frame
            for _ in range(one.up):
                assert place.parent is not None
                place = place.parent
            times = one.times(place.index, place.limit)
            if times:
                total += times * sum(count * usual.get((model, key), 0.0) for key, count in one.keys)
        return total


def _nearer(before: float, seconds: float) -> float:
    return before + (WEIGHT if seconds > before else LIGHTER) * (seconds - before)
