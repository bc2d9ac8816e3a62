"""Capacity estimation: predicted utilization of workers, time to first output and queueing delay.

Workers report their load with every heartbeat (`WorkerLoad`). Between two reports the estimator adds what the conductor
has admitted since. Nothing is decided here; see `admission` and `scaling.autoscaler`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from mstar.conductor.indexed_heap import IndexedHeap
from mstar.conductor.membership import WorkerLost
from mstar.conductor.model import ConductorModel
from mstar.conductor.worker import Worker
from mstar.wire.messages import Submit
from mstar.wire.stats import WorkerLoad


@dataclass(frozen=True, slots=True)
class CapacityTuning:
    """Constants of the estimates."""

    max_stream_utilization: float = 0.9
    """Maximum fraction of a worker's time for streams. The rest covers estimation errors and best-effort requests."""
    wait_estimate_completions: int = 32
    """Number of recent completions that the queueing delay is estimated from."""
    default_interval_s: float = 1.0
    """Assumed seconds between completions while there are none."""
    min_wait_s: float = 0.1
    """Minimum queueing delay in a `Retry-After`."""
    max_wait_s: float = 30.0
    """Maximum queueing delay in a `Retry-After`."""
    wait_tail_factor: float = 2.3
    """90th percentile of the queueing delay relative to its mean, if it is exponentially distributed: ln 10."""


class CapacityEstimator:
    """Predictions from the load that workers report.

    For a request of model `m` on worker `w`, with `n[k]` requests of model `k` admitted since the last report of `w`:

        utilization(w, m) = load.utilization + Σ_k (n[k] + [k = m]) · demand[k].added_utilization
        ttft(w, m)        = demand[m].first_output_s + n[m] · demand[m].per_concurrent_s
        ttft(m)           = Σ over groups of min over workers of ttft(w, m)
        wait(q)           = q · mean interval of the last 32 completions, clamped to [0.1 s, 30 s]
        will miss(m, q)   = ttft(m) + 2.3 · wait(q) > target

    Whether a request will miss its target is decided by the 90th percentile of the wait. With the mean, a share of the
    requests would wait until their target has passed, and be rejected then instead of at once.

    Example: a worker reports utilization 0.45 and each stream of `talk` adds 0.2. Two streams fit (0.85 ≤ 0.9), a third
    does not (1.05). Its time to first output is 0.3 s, plus 0.1 s for each of the two.
    """

    def __init__(self, models: Mapping[str, ConductorModel], tuning: CapacityTuning | None = None) -> None:
        self.inactive: frozenset[str] = frozenset()
        """Workers of elastic groups that do not run and are not starting."""
        self._tuning = tuning or CapacityTuning()
        self._worker_groups = {
            name: {worker_set.workers for plan in model.plans.walks.values() for worker_set in plan.worker_sets}
            for name, model in models.items()
        }
        """By model, the groups of workers of which a request uses one each."""
        self._loads: dict[str, WorkerLoad] = {}
        self._admitted_since_report: dict[str, Counter[str]] = {}
        """By worker, the number of requests of each model admitted since its last report."""
        self._candidates: dict[str, list[_Candidates]] = {}
        """By model, its groups without inactive workers, except where all are inactive."""
        self._groups_of: dict[str, list[_Candidates]] = {}
        """By worker, those of `_candidates` that it is in."""
        self._slo_requests: set[str] = set()
        """Running requests with a TTFT target."""
        self._completion_times: deque[float] = deque(maxlen=self._tuning.wait_estimate_completions)

    # ---------------------------------------------------------------- events
    def update_load(self, worker: str, load: WorkerLoad) -> None:
        """Replace the load report of a worker. It includes everything admitted before."""
        self._loads[worker] = load
        self._admitted_since_report.pop(worker, None)
        self._on_changed(worker)

    def on_worker_started(self, _: float, worker: Worker) -> None:
        """Count a started worker as active."""
        self.set_inactive(self.inactive - {worker.peer.worker})

    def on_worker_lost(self, _: float, lost: WorkerLost) -> None:
        """Drop the load of a lost worker: its next incarnation starts idle."""
        self._loads.pop(lost.peer.worker, None)
        self._admitted_since_report.pop(lost.peer.worker, None)
        self._on_changed(lost.peer.worker)

    def set_inactive(self, workers: Set[str]) -> None:
        """Set the workers that no request should count on."""
        if workers != self.inactive:
            self.inactive = frozenset(workers)
            self._candidates.clear()
            self._groups_of.clear()

    def on_admitted(self, submit: Submit) -> None:
        """Add an admitted request to the least utilized worker of each group it uses."""
        if submit.slo.ttft_s is not None:
            self._slo_requests.add(submit.rid)
        for group in self._candidate_groups(submit.model):
            least = group.workers[group.by_utilization.smallest()[1]]
            self._admitted_since_report.setdefault(least, Counter())[submit.model] += 1
            self._on_changed(least)

    def on_finished(self, now: float, rid: str) -> None:
        """Record the completion of an admitted request."""
        self._slo_requests.discard(rid)
        self._completion_times.append(now)

    # ---------------------------------------------------------------- predictions
    def worker_load(self, worker: str) -> WorkerLoad | None:
        """Return the last load report of a worker."""
        return self._loads.get(worker)

    def has_room(self, submit: Submit) -> bool:
        """Return whether a request can be served without breaking the SLO of another one.

        Best-effort requests always fit. Without any SLO, everything fits.
        """
        has_slo = bool(self._slo_requests) or submit.slo.ttft_s is not None
        if submit.slo.best_effort or not has_slo:
            return True
        return not any(group.by_overload.smallest()[0] for group in self._candidate_groups(submit.model))

    def predict_ttft_s(self, now: float, submit: Submit, queued: int) -> float:
        """Predict the time to first output of a request behind `queued` others; 0 if unknown."""
        ttft_s = self._ttft_s(submit)
        return ttft_s + self._wait_s(now, submit, queued) if ttft_s else 0.0

    def ttft_overrun_s(self, now: float, submit: Submit, queued: int) -> float:
        """Return by how many seconds a request is expected to miss its TTFT target; 0 if that is unlikely."""
        tuning, target_s = self._tuning, submit.slo.ttft_s
        if target_s is None:
            return 0.0
        ttft_s = self._ttft_s(submit)
        overrun_s, wait_s = ttft_s - target_s, self._wait_s(now, submit, queued) if ttft_s else 0.0
        is_likely = overrun_s + tuning.wait_tail_factor * wait_s > 0
        return max(tuning.min_wait_s, overrun_s + wait_s) if is_likely else 0.0

    def _wait_s(self, now: float, submit: Submit, queued: int) -> float:
        """Mean queueing delay of a request behind `queued` others; 0 if it can start."""
        must_wait = queued or not self.has_room(submit)
        return self.estimate_wait_s(now, queued + 1) if must_wait else 0.0

    def estimate_wait_s(self, now: float, queued: int) -> float:
        """Estimate the queueing delay behind `queued` requests from the recent completion rate."""
        tuning, times = self._tuning, self._completion_times
        interval_s = (now - times[0]) / len(times) if times else tuning.default_interval_s
        return min(tuning.max_wait_s, max(tuning.min_wait_s, interval_s * queued))

    # ---------------------------------------------------------------- per worker
    def _candidate_groups(self, model: str) -> Sequence[_Candidates]:
        """The groups of a model without inactive workers, except where all are inactive."""
        if (candidates := self._candidates.get(model)) is None:
            candidates = self._candidates[model] = []
            for group in self._worker_groups[model]:
                workers = tuple(name for name in group if name not in self.inactive) or group
                candidates.append(_Candidates(workers, model, self))
                for worker in workers:
                    self._groups_of.setdefault(worker, []).append(candidates[-1])
        return candidates

    def _on_changed(self, worker: str) -> None:
        """The estimates of a worker have changed."""
        for group in self._groups_of.get(worker, ()):
            group.on_changed(worker)

    def _ttft_s(self, submit: Submit) -> float:
        return sum(group.by_ttft.smallest()[0] for group in self._candidate_groups(submit.model))

    def projected_utilization(self, worker: str, model: str) -> float:
        """Predict the utilization of a worker with one more request of a model; 0 if unknown."""
        load = self._loads.get(worker)
        if load is None:
            return 0.0
        added = dict[str, int](self._admitted_since_report.get(worker) or ())
        added[model] = added.get(model, 0) + 1
        return load.utilization + sum(
            load.demands[name].added_utilization * count for name, count in added.items() if name in load.demands
        )

    def would_overload(self, worker: str, model: str) -> bool:
        """Return whether one more request is too much for a worker that could keep up with it alone."""
        load, limit = self._loads.get(worker), self._tuning.max_stream_utilization
        if load is None or model not in load.demands or load.demands[model].solo_utilization > limit:
            return False
        return self.projected_utilization(worker, model) > limit

    def worker_ttft_s(self, worker: str, model: str) -> float:
        """Predict the time to first output of a request of a model on a worker; 0 if unknown."""
        load = self._loads.get(worker)
        if load is None or model not in load.demands:
            return 0.0
        demand, admitted = load.demands[model], self._admitted_since_report.get(worker, Counter())[model]
        return demand.first_output_s + demand.per_concurrent_s * admitted


class _Candidates:
    """The workers of one group that a request of a model can use, by each estimate.

    The smallest estimate is known without looking at all workers, so that a request costs the same in a large group.
    """

    def __init__(self, workers: tuple[str, ...], model: str, estimator: CapacityEstimator) -> None:
        self.workers = workers
        self.by_utilization = IndexedHeap(workers, lambda worker: estimator.projected_utilization(worker, model))
        self.by_ttft = IndexedHeap(workers, lambda worker: estimator.worker_ttft_s(worker, model))
        self.by_overload = IndexedHeap(workers, lambda worker: float(estimator.would_overload(worker, model)))

    def on_changed(self, worker: str) -> None:
        """The estimates of a worker have changed."""
        for heap in (self.by_utilization, self.by_ttft, self.by_overload):
            heap.update(worker)
