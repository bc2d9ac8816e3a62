"""What batches cost, learned from those that ran: by op and by how many calls share it. Nothing is decided here."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import Call, PathToOutput

ModelBatchKey = tuple[str, int]
"""A model, and the number of a batch key in its plans."""
COST_EMA_WEIGHT, CHEAPER_COST_EMA_WEIGHT = 0.2, 0.5
"""How much the newest batch counts in what an op is thought to cost, and if it was cheaper than that: the first batches
of an op load and compile, and must not be remembered for long."""

BATCH_GAIN_RATIO = 0.85
"""Calls gain by sharing a batch if each takes no more than this part of what it takes by itself."""
MIN_GAIN_SAMPLES, MAX_MEAN_SAMPLES = 8, 32
"""So many batches tell whether they do; after so many each further one counts no less."""


@dataclass(slots=True)
class _RunningMean:
    count: int = 0
    value: float = 0.0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, MAX_MEAN_SAMPLES)
        self.value += (value - self.value) / self.count


class CostModel:
    """Seconds, by batch key."""

    def __init__(self) -> None:
        self._typical_s: dict[ModelBatchKey, float] = {}
        self._by_size_s: dict[ModelBatchKey, dict[int, float]] = {}
        self._per_call_s: dict[ModelBatchKey, tuple[_RunningMean, _RunningMean]] = {}
        """What a call took by itself, and its part of a batch that it shared."""

    def learn(self, key: ModelBatchKey, size: int, seconds: float) -> None:
        """A batch of so many calls has taken so long."""
        self._typical_s[key] = _update_ema(self._typical_s.get(key, seconds), seconds)
        sized = self._by_size_s.setdefault(key, {})
        sized[size] = _update_ema(sized.get(size, seconds), seconds)
        if key not in self._per_call_s:
            self._per_call_s[key] = (_RunningMean(), _RunningMean())
        self._per_call_s[key][size > 1].add(seconds / size)

    def typical_s(self, key: ModelBatchKey) -> float | None:
        """How long a batch has taken lately, as large as they were."""
        return self._typical_s.get(key)

    def predict_s(self, key: ModelBatchKey, size: int) -> float:
        """How long a batch of so many calls will take; 0 if none has run yet."""
        sized = self._by_size_s.get(key)
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

    def per_call_s(self, key: ModelBatchKey) -> float:
        """How long a call has taken lately, its part of a batch; 0 if none has run yet."""
        known = [mean.value for mean in self._per_call_s.get(key, ()) if mean.count]
        return min(known, default=0.0)

    def gains_from_batching(self, key: ModelBatchKey) -> bool:
        """Whether calls that share a batch take less time than each by itself, as far as is known."""
        apart, shared = self._per_call_s.get(key, (_RunningMean(), _RunningMean()))
        is_known = min(apart.count, shared.count) >= MIN_GAIN_SAMPLES
        return not is_known or shared.value < BATCH_GAIN_RATIO * apart.value

    def time_to_output_s(self, model: str, call: Call, path: PathToOutput, frame: Frame) -> float:
        """From a ready call, itself counted, to the emission that it leads to: seconds."""
        usual = self._typical_s
        total = usual.get((model, call.key), 0.0)
        total += sum(count * usual.get((model, key), 0.0) for key, count in path.keys)
        for one in path.loops:
            place = frame
            for _ in range(one.levels_up):
                assert place.parent is not None
                place = place.parent
            times = one.count_iterations(place.index, place.limit)
            if times:
                total += times * sum(count * usual.get((model, key), 0.0) for key, count in one.keys)
        return total


def _update_ema(before: float, seconds: float) -> float:
    return before + (COST_EMA_WEIGHT if seconds > before else CHEAPER_COST_EMA_WEIGHT) * (seconds - before)
