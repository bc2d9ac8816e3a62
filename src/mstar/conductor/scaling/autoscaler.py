"""Autoscaler: keeps as many workers running as each replica group needs.

`ReplicaGroup` computes the targets. The autoscaler starts workers, drains surplus ones and stops those that are
drained. A draining worker gets no new requests, its walks finish, and its states move with the next walk that uses
them. After `drain_timeout_s` walks that still run there are retried elsewhere, unless that is impossible.

Everything happens on ticks. A deployment without elastic groups, rollout or unloaded models sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mstar.conductor.capacity import CapacityEstimator
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.membership import WorkerLost
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.scaling.model_loading import ModelLoading
from mstar.conductor.scaling.replica_group import GroupLoad, ReplicaGroup
from mstar.conductor.scaling.rollout import Rollout
from mstar.conductor.worker import Worker


@dataclass(frozen=True, slots=True)
class AutoscalerTuning:
    """Timing of the autoscaler."""

    evaluation_interval_s: float = 0.2
    """Seconds between evaluations, the interval at which workers report their load."""
    startup_settle_s: float = 2.0
    """Seconds after the start of a conductor in which workers register before it scales."""
    stop_delay_s: float = 1.0
    """Seconds an idle draining worker is kept: its last messages can still be in transit."""


class Autoscaler:
    """Autoscaler of one conductor.

    Every `evaluation_interval_s`:

    1. Update the target of each elastic group from its load; see `ReplicaGroup`.
    2. Scale up: un-drain workers of the newest version, then start stopped ones, until running + starting = target.
    3. During a rollout replace one worker (`Rollout.step`). Otherwise scale down: lower the targets of groups with a
       surplus, and drain the least loaded worker that no group needs.
    4. Stop draining workers that no request needs for `stop_delay_s`.
    5. If workers drain or versions differ, place walks that wait: eligibility can have changed.

    In the first `startup_settle_s` only groups that have a request and no worker scale up: workers that an earlier
    conductor started are still registering.
    """

    tuning = AutoscalerTuning()

    def __init__(
        self,
        fleet: Fleet,
        limits: ConductorLimits,
        capacity: CapacityEstimator,
        lifecycle: RequestLifecycle,
        rollout: Rollout,
        model_loading: ModelLoading,
    ) -> None:
        self.groups = fleet.groups
        self._fleet = fleet
        self._limits = limits
        self._capacity = capacity
        self._lifecycle = lifecycle
        self._rollout = rollout
        self._model_loading = model_loading
        self._membership = fleet.membership
        self._pending_workers = fleet.pending_workers
        self._versions = fleet.versions
        self._is_elastic = any(group.is_elastic for group in fleet.groups)
        self._idle_since: dict[str, float] = {}
        """By name, since when no request needs a draining worker."""
        self._started_at: float | None = None
        self._is_settled = False
        self._last_evaluated_at = float("-inf")

    @property
    def is_active(self) -> bool:
        """Whether there is anything to scale, or a worker starts."""
        return self._is_scaling or bool(self._pending_workers.pending_since)

    @property
    def _is_scaling(self) -> bool:
        is_changing = self._rollout.is_active or self._model_loading.is_active
        return self._is_elastic or is_changing or bool(self._membership.draining())

    # ---------------------------------------------------------------- events
    def on_worker_started(self, now: float, worker: Worker) -> None:
        """Note that a worker registered."""
        self._pending_workers.on_started(now, worker.peer.worker)
        self._rollout.on_worker_started(now, worker)
        self._versions.refresh()

    def on_worker_lost(self, now: float, lost: WorkerLost) -> None:
        """Expect a lost worker to be restarted by the launcher, unless it was stopped."""
        worker = lost.peer.worker
        self._idle_since.pop(lost.peer.name, None)
        self._rollout.on_worker_lost(lost)
        is_expected = not self._membership.is_stopping(lost.peer) and not self._membership.serving([worker])
        if is_expected and not self._limits.has_fixed_workers:
            # A conductor that scales can have stopped it, also an earlier one: then the launcher does not restart it.
            self._pending_workers.on_lost(now, worker, is_requested=self._is_scaling)
        self._versions.refresh()

    def stats(self) -> dict[str, int]:
        """Count workers that start, drain and stop; while active, also by worker."""
        draining = {worker.peer.worker for worker in self._membership.draining()}
        starting = self._pending_workers.pending_since
        stopping = self._membership.stopping
        counts = {"starting": len(starting), "draining": len(draining), "stopping": len(stopping)}
        if self.is_active:
            for name in dict.fromkeys(name for group in self.groups for name in group.workers):
                counts |= {f"starting {name}": int(name in starting), f"draining {name}": int(name in draining)}
        return counts

    # ---------------------------------------------------------------- evaluation
    def step(self, now: float) -> None:
        """Evaluate all groups, at most once per `evaluation_interval_s`."""
        is_due = now - self._last_evaluated_at >= self.tuning.evaluation_interval_s
        if not self.is_active or self._limits.has_fixed_workers or not is_due:
            return
        self._last_evaluated_at = now
        was_uniform = self._versions.is_uniform
        is_settled = self._check_settled(now)
        self._scale_up(now, is_settled=is_settled)
        if is_settled:
            if self._rollout.is_active:
                self._rollout.step(now)
            else:
                self._scale_down(now)
            self._stop_drained(now)
        self._update_inactive()
        self._versions.refresh()
        if not (was_uniform and self._versions.is_uniform):
            self._lifecycle.place_waiting(now)

    def _check_settled(self, now: float) -> bool:
        """Whether all workers had time to register. Then the running workers become the initial targets."""
        if self._started_at is None:
            self._started_at = now
        settle_s = min(self.tuning.startup_settle_s, self._limits.scale_down_delay_s)
        is_settled = now - self._started_at >= settle_s
        if is_settled and not self._is_settled:
            self._is_settled = True
            for group in self.groups:  # an earlier conductor needed them
                running = {worker.peer.worker for worker in self._fleet.serving(group)}
                group.target = max(group.target, len(running))
        return is_settled

    def _update_inactive(self) -> None:
        workers = self._membership.workers.values()
        serving = {worker.peer.worker for worker in workers if worker.draining_since is None}
        active = serving | self._pending_workers.pending_since.keys()
        self._capacity.set_inactive(
            {name for group in self.groups if group.is_elastic for name in group.workers} - active
        )

    # ---------------------------------------------------------------- scale up
    def _scale_up(self, now: float, *, is_settled: bool) -> None:
        models = self._lifecycle.models() | self._model_loading.loading()
        queued_models = self._lifecycle.queued_models()
        self._pending_workers.expire(now)
        for group in self.groups:
            if not models.isdisjoint(group.models):
                group.last_requested_at = now
            if group.is_elastic:
                group.update_target(now, self._group_load(group, queued_models), self._limits.scale_down_delay_s)
            if is_settled or (group.last_requested_at == now and not self._fleet.serving(group)):
                self._start_missing(now, group)

    def _group_load(self, group: ReplicaGroup, queued_models: Collection[str]) -> GroupLoad:
        serving = self._fleet.serving(group)
        reports = (self._capacity.worker_load(worker.peer.worker) for worker in serving)
        loads = [load for load in reports if load is not None]
        return GroupLoad(
            replicas=len(serving),
            utilization=sum(load.utilization for load in loads),
            queued_batches=sum(load.queued_batches for load in loads),
            walks=sum(worker.running_walks for worker in serving),
            deadline_misses=sum(load.deadline_misses for load in loads),
            is_starting=any(name in group.workers for name in self._pending_workers.pending_since),
            has_queued_requests=not group.models.isdisjoint(queued_models),
        )

    def _start_missing(self, now: float, group: ReplicaGroup) -> None:
        """Bring a group to its target: un-drain workers first, then start stopped ones."""
        pending = self._pending_workers
        missing = group.target - len(self._fleet.serving(group)) - len(pending.expected(now, group.workers))
        for worker in self._membership.processes(group.workers):
            is_newest = worker.weights_version == self._versions.newest
            if missing > 0 and worker.draining_since is not None and is_newest:
                worker.draining_since = None
                self._idle_since.pop(worker.peer.name, None)
                missing -= 1
        for name in pending.stopped(group.workers)[: max(0, missing)]:
            pending.request_start(now, name)
        pending.retry_starts(now, group.workers)

    # ---------------------------------------------------------------- scale down
    def _scale_down(self, now: float) -> None:
        """Lower targets, then drain one worker per group above its target, the least loaded first."""
        for group in self.groups:
            group.scale_down(now, self._limits.scale_down_delay_s, self._pending_workers.last_start_s)
        for group in self.groups:
            serving = self._fleet.serving(group)
            if len(serving) > group.target:
                surplus = [worker for worker in reversed(serving) if self._is_surplus(worker)]
                if surplus:
                    min(surplus, key=lambda worker: worker.running_walks).draining_since = now

    def _is_surplus(self, worker: Worker) -> bool:
        """Whether every group of a worker reaches its target without it."""
        own = 0 if worker.draining_since is not None else 1
        groups = self._fleet.groups_of_worker(worker.peer.worker)
        return all(len(self._fleet.serving(group)) - own >= group.target for group in groups)

    def _stop_drained(self, now: float) -> None:
        """Stop draining workers that no request needs, or that have drained for too long."""
        for worker in self._membership.draining():
            peer = worker.peer
            if worker.weights_version == self._versions.newest and not self._is_surplus(worker):
                continue  # the next scale-up un-drains it
            if self._must_stay(now, worker):
                self._idle_since.pop(peer.name, None)
                continue
            is_overdue = worker.is_needed()
            idle_since = self._idle_since.setdefault(peer.name, now)
            idle_s = now - max(idle_since, worker.draining_since or 0.0)  # it can have served since an earlier drain
            if is_overdue or idle_s >= self.tuning.stop_delay_s:
                self._membership.stop(now, peer)

    def _must_stay(self, now: float, worker: Worker) -> bool:
        """Whether a draining worker must stay for a request."""
        if self._has_needed_version(worker):
            return True
        if worker.draining_since is None or not worker.is_needed():
            return False
        if now - worker.draining_since < self._limits.drain_timeout_s:
            return True
        requests = worker.requests.values()
        return any(request.needs(worker.peer) and not request.is_retryable for request in requests)

    def _has_needed_version(self, worker: Worker) -> bool:
        """Whether no other worker of a group has the weights version that a request started with."""
        version, name = worker.weights_version, worker.peer.worker
        groups = [
            group
            for group in self._fleet.groups_of_worker(name)
            if all(other.weights_version != version for other in self._fleet.serving(group))
        ]
        return any(self._versions.is_needed(version, model) for group in groups for model in group.models)
