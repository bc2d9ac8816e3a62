"""Whom a conductor takes on, by what workers say they have to do: nobody who would make a promise be broken.

A promise is given to who asked for it (see `wire.pace`). Nothing is refused for its sake while nobody has one, and a
model whose streams cannot keep up even alone is served as well as it can be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Set
from typing import TYPE_CHECKING

from mstar.wire.messages import Submit
from mstar.wire.stats import WorkerLoad

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorModel

MAX_STREAM_UTILIZATION = 0.9
"""So much of a worker streams may need: costs are not known exactly, and others want something too."""
WAIT_ESTIMATE_COMPLETIONS = 32
"""By so many requests that ended last it is told how fast there is room for others."""


class Admission:
    """What workers have to do, as far as it is known."""

    def __init__(self, models: Mapping[str, ConductorModel], inactive: Set[str] = frozenset()) -> None:
        self._inactive = inactive
        """Workers that nobody is sent to."""
        self._worker_groups = {
            name: {spot.workers for plan in one.plans.walks.values() for spot in plan.worker_sets}
            for name, one in models.items()
        }
        """Of each model: groups of workers of which its requests use one each."""
        self._loads: dict[str, WorkerLoad] = {}
        self._admitted_since_report: dict[str, Counter[str]] = {}
        """By worker: of which models requests were taken on since it last said what it has to do."""
        self._slo_requests: set[str] = set()
        self._completion_times: deque[float] = deque(maxlen=WAIT_ESTIMATE_COMPLETIONS)

    # ---------------------------------------------------------------- what happens
    def update_load(self, worker: str, load: WorkerLoad) -> None:
        """A worker says what it has to do."""
        self._loads[worker] = load
        self._admitted_since_report.pop(worker, None)

    def remove_worker(self, worker: str) -> None:
        """A worker is gone."""
        self._loads.pop(worker, None)
        self._admitted_since_report.pop(worker, None)

    def on_admitted(self, submit: Submit) -> None:
        """A request is taken on."""
        if submit.slo.ttft_s is not None:
            self._slo_requests.add(submit.rid)
        for workers in self._candidate_groups(submit.model):
            least = min(workers, key=lambda worker: self._projected_utilization(worker, submit.model))
            self._admitted_since_report.setdefault(least, Counter())[submit.model] += 1

    def on_finished(self, now: float, rid: str) -> None:
        """A request is over."""
        self._slo_requests.discard(rid)
        self._completion_times.append(now)

    # ---------------------------------------------------------------- what follows
    def worker_load(self, worker: str) -> WorkerLoad | None:
        """What a worker has to do, as it last said."""
        return self._loads.get(worker)

    def _candidate_groups(self, model: str) -> Collection[tuple[str, ...]]:
        """Groups of workers of which a request uses one each; those asleep count only where all are."""
        asleep = self._inactive
        if not asleep:
            return self._worker_groups[model]
        return [tuple(one for one in group if one not in asleep) or group for group in self._worker_groups[model]]

    def has_room(self, submit: Submit) -> bool:
        """Whether this one can be served beside those that are."""
        is_bound = self._slo_requests or submit.slo.ttft_s is not None
        if submit.slo.best_effort or not is_bound:
            return True
        for workers in self._candidate_groups(submit.model):
            if all(self._would_overload(worker, submit.model) for worker in workers):
                return False
        return True

    def _ttft_s(self, submit: Submit) -> float:
        """In how many seconds its first emission would come if it began now."""
        groups = self._candidate_groups(submit.model)
        return sum(min(self._worker_ttft_s(worker, submit.model) for worker in workers) for workers in groups)

    def predict_ttft_s(self, now: float, submit: Submit, queued: int) -> float:
        """In how many seconds the first emission of a request will come, behind so many that wait; 0: nobody knows."""
        first = self._ttft_s(submit)
        has_to_wait = first and (queued or not self.has_room(submit))
        return first + self.estimate_wait_s(now, queued + 1) if has_to_wait else first

    def ttft_overrun_s(self, now: float, submit: Submit, queued: int) -> float:
        """By how many seconds the promise that a request asks for would be broken."""
        wanted = submit.slo.ttft_s
        return 0.0 if wanted is None else max(0.0, self.predict_ttft_s(now, submit, queued) - wanted)

    def estimate_wait_s(self, now: float, queued: int) -> float:
        """For how many seconds so many wait for room, by how fast requests have ended lately."""
        ended = self._completion_times
        each = (now - ended[0]) / len(ended) if ended else 1.0
        return min(30.0, max(0.1, each * queued))

    def _projected_utilization(self, worker: str, model: str) -> float:
        """What a worker would have to do with one more of a model."""
        load = self._loads.get(worker)
        if load is None:
            return 0.0
        new = self._admitted_since_report.get(worker, Counter()) + Counter([model])
        return load.utilization + sum(
            load.demands[name].added_utilization * count for name, count in new.items() if name in load.demands
        )

    def _would_overload(self, worker: str, model: str) -> bool:
        """Whether one more of a model would be too much for a worker that could keep up with it alone."""
        load = self._loads.get(worker)
        keeps_up = (
            load is not None
            and model in load.demands
            and load.demands[model].solo_utilization <= MAX_STREAM_UTILIZATION
        )
        return keeps_up and self._projected_utilization(worker, model) > MAX_STREAM_UTILIZATION

    def _worker_ttft_s(self, worker: str, model: str) -> float:
        load = self._loads.get(worker)
        if load is None or model not in load.demands:
            return 0.0
        need = load.demands[model]
        return need.first_output_s + need.per_concurrent_s * self._admitted_since_report.get(worker, Counter())[model]
