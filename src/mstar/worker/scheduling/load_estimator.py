"""What a worker has to do so that no stream runs dry, what one more would need, and how late emissions were.

Learned from what went by: how many calls of each op a second of sound, film or action takes, and how many come before
the first of it. Nothing is decided here: conductors take on whom they think they can serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from mstar.plan.tables import Emit
from mstar.wire.slo import duration_of, has_deadline
from mstar.wire.stats import DeadlineStats, StreamDemand, WorkerLoad
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.cost_model import ModelBatchKey

PROFILE_WINDOW_S = 120.0
"""So many seconds of sound, film or action of a model count; of what is older, half."""
CLOSE_PREDICTION_RATIO = 0.25
"""A forecast that is wrong by no more than this part is close."""
PROFILE_EMA_WEIGHT = 0.2
"""How much the newest stream counts in what comes before a first emission."""


@dataclass(slots=True)
class _StreamProfile:
    """What streams of one model usually do."""

    played_s: float = 0.0
    """For how long streams had something to play while the next was made."""
    calls: Counter[int] = field(default_factory=Counter[int])
    """By batch key, for all those seconds."""
    calls_before_first: dict[int, float] = field(default_factory=dict[int, float])
    """By batch key, the calls before a first emission."""

    def add_playback(self, seconds: float) -> None:
        self.played_s += seconds
        if self.played_s > PROFILE_WINDOW_S:
            self.played_s /= 2
            self.calls = Counter({key: count // 2 for key, count in self.calls.items()})

    def add_start(self, calls: dict[int, int]) -> None:
        if not self.calls_before_first:
            self.calls_before_first = {key: float(count) for key, count in calls.items()}
        for key in {*self.calls_before_first, *calls}:
            usual = self.calls_before_first.get(key, 0.0)
            self.calls_before_first[key] = usual + PROFILE_EMA_WEIGHT * (calls.get(key, 0) - usual)


class LoadEstimator:
    """The habits of models at one worker."""

    def __init__(self, estimate_s: Callable[[ModelBatchKey, int], float]) -> None:
        self._estimate_s = estimate_s
        """How long so many calls of a batch key take that are there at the same time."""
        self._profiles: dict[str, _StreamProfile] = {}
        self._deadline_stats: dict[tuple[str, str], DeadlineStats] = {}

    def deadline_stats(self) -> list[DeadlineStats]:
        """What emissions came to until now."""
        return [replace(one) for one in self._deadline_stats.values()]

    def on_call(self, walk_run: WalkRun, key: int) -> None:
        """A call has run."""
        if walk_run.has_deadlines and (habit := self._profiles.get(walk_run.start.model)) is not None:
            habit.calls[key] += 1

    def on_emission(self, now: float, walk_run: WalkRun, table: Emit, value: object) -> None:
        """Something goes to a client."""
        start, kind = walk_run.start, table.kind
        if not has_deadline(kind, start.slo):
            return
        is_first = not walk_run.playback_clocks
        before = 0.0 if kind not in walk_run.playback_clocks else walk_run.playback_clocks[kind].last_duration_s
        late = walk_run.record_playback(now, kind, duration_of(kind, value, dict(table.clock), start.slo))
        if late is None:
            return
        habit = self._profiles.setdefault(start.model, _StreamProfile())
        habit.add_playback(before)  # for so long it could wait for this one; for the first one it could not
        count = self._deadline_stats.setdefault((start.model, kind), DeadlineStats(start.model, kind))
        count.count += 1
        if late > 0:
            count.misses += 1
            count.lateness_s += late
        if is_first:
            habit.add_start(walk_run.completed_calls)
            if start.predicted_ttft_s > 0:
                took = now - (walk_run.first_due - start.slo.ttft_target_s)
                missed = abs(start.predicted_ttft_s - took) / max(took, 1e-9)
                count.predictions += 1
                count.relative_error += missed
                count.within_25pct += missed <= CLOSE_PREDICTION_RATIO

    def estimate_load(self, requests: Iterable[WorkerRequest], waiting: int = 0) -> WorkerLoad:
        """What there is to do now; `waiting` batches are ready."""
        streams, fresh = Counter[str](), Counter[str]()
        for guest in requests:
            tour = guest.walk_run
            if tour is not None and tour.has_deadlines:
                streams[tour.start.model] += 1
                fresh[tour.start.model] += not tour.playback_clocks
        needs, share = dict[str, StreamDemand](), 0.0
        for model, habit in self._profiles.items():
            if habit.played_s:
                here = self._utilization(model, habit, streams[model])
                share += here
                first = self._ttft_s(model, habit, fresh[model] + 1)
                needs[model] = StreamDemand(
                    solo_utilization=self._utilization(model, habit, 1),
                    added_utilization=self._utilization(model, habit, streams[model] + 1) - here,
                    first_output_s=first,
                    per_concurrent_s=self._ttft_s(model, habit, fresh[model] + 2) - first,
                )
        return WorkerLoad(share, needs, waiting, sum(count.misses for count in self._deadline_stats.values()))

    def _utilization(self, model: str, profile: _StreamProfile, streams: int) -> float:
        """The part of all time that so many streams need, which share their batches."""
        if not streams:
            return 0.0
        calls = profile.calls.items()
        return sum(count * self._estimate_s((model, key), streams) for key, count in calls) / profile.played_s

    def _ttft_s(self, model: str, profile: _StreamProfile, streams: int) -> float:
        return sum(count * self._estimate_s((model, key), streams) for key, count in profile.calls_before_first.items())
