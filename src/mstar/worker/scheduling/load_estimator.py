"""Load estimator: the engine time that running streams need, the demand of one more stream, and deadline misses.

It learns a profile per model from finished calls and emissions: calls per second of audio, video or actions, and calls
before the first emission. Conductors use the result for admission control; nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from mstar.plan.tables import Emit
from mstar.wire.slo import duration_of, has_deadline
from mstar.wire.stats import DeadlineStats, StreamDemand, WorkerLoad
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import ModelBatchKey

PROFILE_WINDOW_S = 120.0
"""Seconds of playback after which a profile's totals are halved, so that recent streams dominate."""
CLOSE_PREDICTION_RATIO = 0.25
"""Maximum relative error of a time-to-first-output prediction that counts as close."""
PROFILE_EMA_WEIGHT = 0.2
"""Weight of the newest stream in the moving average of calls before the first emission."""


@dataclass(slots=True)
class _StreamProfile:
    """Typical work of the streams of one model."""

    played_s: float = 0.0
    """Seconds of playback that the recorded calls produced."""
    calls: Counter[int] = field(default_factory=Counter[int])
    """Calls by batch key during `played_s`."""
    calls_before_first: dict[int, float] = field(default_factory=dict[int, float])
    """Average calls before the first emission, by batch key."""

    def add_playback(self, seconds: float) -> None:
        self.played_s += seconds
        if self.played_s > PROFILE_WINDOW_S:
            self.played_s /= 2
            self.calls = Counter({key: count // 2 for key, count in self.calls.items()})

    def add_start(self, calls: dict[int, int]) -> None:
        if not self.calls_before_first:
            self.calls_before_first = {key: float(count) for key, count in calls.items()}
        for key in {*self.calls_before_first, *calls}:
            average = self.calls_before_first.get(key, 0.0)
            self.calls_before_first[key] = average + PROFILE_EMA_WEIGHT * (calls.get(key, 0) - average)


class LoadEstimator:
    """Stream profiles and deadline statistics of one worker."""

    def __init__(self, estimate_s: Callable[[ModelBatchKey, int], float]) -> None:
        self._estimate_s = estimate_s
        """Predicted seconds for a number of simultaneous calls of a batch key."""
        self._profiles: dict[str, _StreamProfile] = {}
        self._deadline_stats: dict[tuple[str, str], DeadlineStats] = {}
        self._streams: Counter[str] = Counter()
        """By model, the requests whose last walk here has deadlines: kept, so that a heartbeat does not count them."""
        self._unstarted: Counter[str] = Counter()
        """By model, those of them without an emission that plays."""

    def deadline_stats(self) -> list[DeadlineStats]:
        """Copy of the deadline statistics by model and kind of emission."""
        return [replace(stats) for stats in self._deadline_stats.values()]

    def on_walk_started(self, walk_run: WalkRun, previous: WalkRun | None) -> None:
        """Count a walk run with its playback clocks, instead of the previous one of its request."""
        self._count(previous, -1)
        self._count(walk_run, 1)

    def on_request_closed(self, walk_run: WalkRun | None) -> None:
        """Do not count the last walk run of a request."""
        self._count(walk_run, -1)

    def set_playback(self, now: float, walk_run: WalkRun, due_in_s: dict[str, float]) -> None:
        """Set when the client of a walk run runs out of output of each kind, in seconds from now."""
        was_unstarted = not walk_run.playback_clocks
        walk_run.set_playback(now, due_in_s)
        if was_unstarted:
            self._count_started(walk_run)

    def _count(self, walk_run: WalkRun | None, number: int) -> None:
        if walk_run is not None and walk_run.has_deadlines:
            self._streams[walk_run.start.model] += number
            if not walk_run.playback_clocks:
                self._unstarted[walk_run.start.model] += number

    def _count_started(self, walk_run: WalkRun) -> None:
        """Count a walk run that was unstarted and can have started."""
        if walk_run.has_deadlines and walk_run.playback_clocks:
            self._unstarted[walk_run.start.model] -= 1

    def on_call(self, walk_run: WalkRun, key: int) -> None:
        """Record a finished call."""
        if walk_run.has_deadlines and (profile := self._profiles.get(walk_run.start.model)) is not None:
            profile.calls[key] += 1

    def on_emission(self, now: float, walk_run: WalkRun, table: Emit, value: object) -> None:
        """Record an emission that is sent to the client now."""
        start, kind = walk_run.start, table.kind
        if not has_deadline(kind, start.slo):
            return
        is_first = not walk_run.playback_clocks
        clock = walk_run.playback_clocks.get(kind)
        previous_duration_s = 0.0 if clock is None else clock.last_duration_s
        late_s = walk_run.record_playback(now, kind, duration_of(kind, value, dict(table.clock), start.slo))
        if is_first:
            self._count_started(walk_run)
        if late_s is None:
            return
        profile = self._profiles.setdefault(start.model, _StreamProfile())
        profile.add_playback(previous_duration_s)  # this emission was computed while the previous one played
        stats = self._deadline_stats.setdefault((start.model, kind), DeadlineStats(start.model, kind))
        stats.count += 1
        if late_s > 0:
            stats.misses += 1
            stats.lateness_s += late_s
        if is_first:
            profile.add_start(walk_run.completed_calls)
            if start.predicted_ttft_s > 0:
                _record_prediction(stats, start.predicted_ttft_s, now - (walk_run.first_due - start.slo.ttft_target_s))

    def estimate_load(self, pending_batches: int = 0) -> WorkerLoad:
        """Current load of the worker, and the demand of one more stream of each model."""
        streams, unstarted = self._streams, self._unstarted
        demands, total_utilization = dict[str, StreamDemand](), 0.0
        for model, profile in self._profiles.items():
            if profile.played_s:
                utilization = self._utilization(model, profile, streams[model])
                total_utilization += utilization
                first_output_s = self._ttft_s(model, profile, unstarted[model] + 1)
                demands[model] = StreamDemand(
                    solo_utilization=self._utilization(model, profile, 1),
                    added_utilization=self._utilization(model, profile, streams[model] + 1) - utilization,
                    first_output_s=first_output_s,
                    per_concurrent_s=self._ttft_s(model, profile, unstarted[model] + 2) - first_output_s,
                )
        misses = sum(stats.misses for stats in self._deadline_stats.values())
        return WorkerLoad(total_utilization, demands, pending_batches, misses)

    def _utilization(self, model: str, profile: _StreamProfile, streams: int) -> float:
        """Share of engine time that this many streams need when they share batches."""
        if not streams:
            return 0.0
        calls = profile.calls.items()
        return sum(count * self._estimate_s((model, key), streams) for key, count in calls) / profile.played_s

    def _ttft_s(self, model: str, profile: _StreamProfile, streams: int) -> float:
        """Seconds of work before the first emission when this many streams start together."""
        return sum(count * self._estimate_s((model, key), streams) for key, count in profile.calls_before_first.items())


def _record_prediction(stats: DeadlineStats, predicted_s: float, actual_s: float) -> None:
    error = abs(predicted_s - actual_s) / max(actual_s, 1e-9)
    stats.predictions += 1
    stats.relative_error += error
    if error <= CLOSE_PREDICTION_RATIO:
        stats.within_25pct += 1
