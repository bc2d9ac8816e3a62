"""Cost model: seconds per batch by op and batch size, learned from finished batches. It makes no decisions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import Call, PathToOutput

ModelBatchKey = tuple[str, int]
"""Model, and number of the batch key in its plans."""
COST_EMA_WEIGHT = 0.2
"""Weight of the newest batch in the moving average of an op's cost."""
CHEAPER_COST_EMA_WEIGHT = 0.5
"""The same for a batch that was cheaper than the average: the first batches load and compile, and must fade fast."""
BATCH_GAIN_RATIO = 0.85
"""Batching gains if a call in a batch costs less than this share of a call alone."""
MIN_GAIN_SAMPLES = 8
"""Batches of each kind (one call, several calls) before the gain of batching counts as known."""
MAX_MEAN_SAMPLES = 32
"""Samples after which the running mean becomes a moving average of this length."""


@dataclass(slots=True)
class _RunningMean:
    count: int = 0
    value: float = 0.0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, MAX_MEAN_SAMPLES)
        self.value += (value - self.value) / self.count


@dataclass(slots=True)
class _PerCallCost:
    """Seconds per call, alone and as a share of a larger batch."""

    alone: _RunningMean = field(default_factory=_RunningMean)
    shared: _RunningMean = field(default_factory=_RunningMean)


class CostModel:
    """Costs in seconds, by batch key."""

    def __init__(self) -> None:
        self._typical_s: dict[ModelBatchKey, float] = {}
        self._by_size_s: dict[ModelBatchKey, dict[int, float]] = {}
        self._per_call: dict[ModelBatchKey, _PerCallCost] = {}

    def learn(self, key: ModelBatchKey, size: int, seconds: float) -> None:
        """Record a finished batch."""
        self._typical_s[key] = _update_ema(self._typical_s.get(key, seconds), seconds)
        by_size = self._by_size_s.setdefault(key, {})
        by_size[size] = _update_ema(by_size.get(size, seconds), seconds)
        per_call = self._per_call.get(key)
        if per_call is None:
            per_call = self._per_call[key] = _PerCallCost()
        (per_call.shared if size > 1 else per_call.alone).add(seconds / size)

    def typical_s(self, key: ModelBatchKey) -> float | None:
        """Recent cost of a batch at its usual size; None before the first."""
        return self._typical_s.get(key)

    def predict_s(self, key: ModelBatchKey, size: int) -> float:
        """Predicted cost of a batch of `size` calls, interpolated between known sizes; 0 before the first batch."""
        by_size = self._by_size_s.get(key)
        if by_size is None:
            return 0.0
        if size in by_size:
            return by_size[size]
        sizes = sorted(by_size)
        position = bisect_left(sizes, size)
        low, high = sizes[max(0, position - 1)], sizes[min(position, len(sizes) - 1)]
        if low < size < high:
            return by_size[low] + (by_size[high] - by_size[low]) * (size - low) / (high - low)
        if size < low:
            return by_size[low]  # an upper bound: a smaller batch costs no more
        smallest = sizes[0]
        slope = (by_size[low] - by_size[smallest]) / (low - smallest) if low > smallest else by_size[low] / low
        return by_size[low] + max(0.0, slope) * (size - low)

    def per_call_s(self, key: ModelBatchKey) -> float:
        """Recent cost per call, at the cheaper of alone and batched; 0 before the first batch."""
        per_call = self._per_call.get(key)
        if per_call is None:
            return 0.0
        return min((mean.value for mean in (per_call.alone, per_call.shared) if mean.count), default=0.0)

    def gains_from_batching(self, key: ModelBatchKey) -> bool:
        """Whether batching makes calls cheaper; True until enough batches of both kinds have run."""
        per_call = self._per_call.get(key)
        if per_call is None or min(per_call.alone.count, per_call.shared.count) < MIN_GAIN_SAMPLES:
            return True
        return per_call.shared.value < BATCH_GAIN_RATIO * per_call.alone.value

    def time_to_output_s(self, model: str, call: Call, path: PathToOutput, frame: Frame) -> float:
        """Seconds of work on the critical path from a ready call, inclusive, to an emission."""
        costs = self._typical_s
        total = costs.get((model, call.key), 0.0)
        total += sum(count * costs.get((model, key), 0.0) for key, count in path.keys)
        for remaining in path.loops:
            loop_frame = frame
            for _ in range(remaining.levels_up):
                assert loop_frame.parent is not None
                loop_frame = loop_frame.parent
            iterations = remaining.count_iterations(loop_frame.index, loop_frame.limit)
            if iterations:
                total += iterations * sum(count * costs.get((model, key), 0.0) for key, count in remaining.keys)
        return total


def _update_ema(before: float, seconds: float) -> float:
    return before + (COST_EMA_WEIGHT if seconds > before else CHEAPER_COST_EMA_WEIGHT) * (seconds - before)
