"""Replica groups: interchangeable workers that hold the same components, and the target number of replicas of each.

A group with a fixed number of replicas is one too: rolling updates replace its workers one by one. Nothing is sent
here; the autoscaler acts on the targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf

from mstar.conductor.model import ConductorModel


@dataclass(frozen=True, slots=True)
class ScalingTuning:
    """Thresholds and delays of the autoscaler."""

    scale_up_utilization: float = 0.9
    """Stream utilization per replica above which a group is overloaded."""
    scale_down_utilization: float = 0.6
    """Maximum stream utilization per replica after scaling down. The gap to `scale_up_utilization` prevents
    flapping."""
    max_backlog_batches: int = 3
    """Queued batches per replica from which a group is overloaded: calls wait longer than they run."""
    lateness_window_s: float = 0.5
    """Seconds for which a missed deadline counts as overload."""
    scale_up_delay_divisor: float = 5.0
    """A group scales up after `scale_down_delay_s` divided by this: a slow scale-up costs latency, a slow scale-down
    only money."""
    last_replica_delay_factor: float = 2.0
    """Factor on the scale-down delay of the last replica: the next request waits for a cold start."""
    start_time_delay_factor: float = 3.0
    """Minimum scale-down delay in multiples of the last start time, so that starting pays off."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """Current load of one group, summed over its serving replicas."""

    replicas: int = 0
    """Replicas that serve."""
    utilization: float = 0.0
    """Fraction of a worker's time that streams need, summed."""
    queued_batches: int = 0
    walks: int = 0
    """Running walks."""
    deadline_misses: int = 0
    """Missed deadlines since the workers started."""
    is_starting: bool = False
    """Whether a replica starts."""
    has_queued_requests: bool = False
    """Whether requests of its models wait for admission."""


@dataclass(eq=False, slots=True)
class ReplicaGroup:
    """Interchangeable workers of which a request uses one, with their autoscaling state.

    `update_target` runs every 0.2 s. With load summed over `n = max(1, replicas)` serving replicas:

    1. Overloaded, if any of: utilization > 0.9 n; queued batches ≥ 3 n; a deadline was missed in the last 0.5 s while
       walks run; requests wait for admission.
    2. Scale up after `scale_down_delay_s / 5` of overload, unless a replica is starting:
       `target = min(workers, max(target + 1, ceil(utilization / 0.9)))`.
    3. Learn `safe_walks_per_worker`: the largest number of walks per worker that caused no backlog for a whole
       `scale_down_delay_s`. A scale-up lowers it below the number that was too much.
    4. Surplus, if `target - 1` replicas would do: utilization ≤ 0.6 (target - 1), walks ≤ safe (target - 1), fewer
       queued batches than replicas, nothing waits. For the last replica: no request of its models at all.
    5. `scale_down`: after max(`scale_down_delay_s`, 3 x last start time) of surplus, `target -= 1`; the last replica
       takes twice as long.

    Example: `scale_down_delay_s = 5`, 1 replica at utilization 1.2. After 1 s of overload, target = max(2, ceil(1.33))
    = 2. When utilization drops to 0.5, one replica would do (0.5 ≤ 0.6), and after 5 s of that target = 1.
    """

    workers: tuple[str, ...]
    configured_min_replicas: int
    """Minimum replicas while at least one of its models is loaded."""
    models: set[str] = field(default_factory=set[str])
    """Models that use it."""
    target: int = 0
    """Number of replicas that should run."""
    is_unloaded: bool = False
    """Whether all its models are unloaded."""
    safe_walks_per_worker: int = 1
    """Walks per worker that are known not to overload."""
    last_requested_at: float = -inf
    """Last time there was a request that can use it."""
    overloaded_since: float = inf
    relaxed_since: float = inf
    """Start of the current observation without backlog."""
    fewest_walks_per_worker: float = inf
    """Minimum walks per worker during that observation."""
    surplus_since: float = inf
    """Since when fewer replicas would do."""
    deadline_misses: int = 0
    """Missed deadlines at the last update."""
    last_miss_at: float = -inf
    """Last time that number had increased."""
    tuning: ScalingTuning = field(default_factory=ScalingTuning)

    @property
    def min_replicas(self) -> int:
        """Minimum replicas now."""
        return 0 if self.is_unloaded else self.configured_min_replicas

    @property
    def is_elastic(self) -> bool:
        """Whether it can have fewer replicas than workers."""
        return self.min_replicas < len(self.workers)

    def update_target(self, now: float, load: GroupLoad, scale_down_delay_s: float) -> None:
        """Update the target and the surplus clock (steps 1 to 4)."""
        if self.is_unloaded:  # running requests finish first; a new request loads the model again
            self.target = max(1, self.target) if self.last_requested_at == now else 0
            return
        if self.last_requested_at == now and not self.target:
            self.target = 1
        tuning, replicas = self.tuning, max(1, load.replicas)
        is_overloaded = self._is_overloaded(now, load, replicas)
        self.overloaded_since = min(self.overloaded_since, now) if is_overloaded else inf
        is_overload_lasting = now - self.overloaded_since > tuning.lateness_window_s
        has_backlog = bool(load.queued_batches) or is_overload_lasting
        self._learn_capacity(now, scale_down_delay_s, inf if has_backlog else load.walks / replicas)
        is_growing = load.is_starting or load.replicas < self.target
        if now - self.overloaded_since >= scale_down_delay_s / tuning.scale_up_delay_divisor and not is_growing:
            needed = ceil(load.utilization / tuning.scale_up_utilization)
            self.target = min(len(self.workers), max(self.target + 1, needed))
            self.safe_walks_per_worker = max(1, min(self.safe_walks_per_worker, ceil(load.walks / replicas) - 1))
            self.overloaded_since = inf
        fewer = self.target - 1
        has_room = (
            load.utilization <= tuning.scale_down_utilization * fewer
            and load.walks <= self.safe_walks_per_worker * fewer
            and load.queued_batches < replicas
            and not load.has_queued_requests
        )
        is_idle = has_room and not is_overload_lasting if fewer else self.last_requested_at < now
        self.surplus_since = min(self.surplus_since, now) if fewer >= self.min_replicas and is_idle else inf

    def _is_overloaded(self, now: float, load: GroupLoad, replicas: int) -> bool:
        tuning = self.tuning
        if load.deadline_misses > self.deadline_misses:
            self.last_miss_at = now
        self.deadline_misses = load.deadline_misses
        is_late = now - self.last_miss_at < tuning.lateness_window_s and bool(load.walks)
        return bool(load.replicas) and (
            load.utilization > tuning.scale_up_utilization * replicas
            or load.queued_batches >= tuning.max_backlog_batches * replicas
            or is_late
            or load.has_queued_requests
        )

    def _learn_capacity(self, now: float, period_s: float, walks_per_worker: float) -> None:
        """Step 3; `walks_per_worker` is infinite while there is backlog."""
        if walks_per_worker == inf:
            self.relaxed_since, self.fewest_walks_per_worker = inf, inf
            return
        self.relaxed_since = min(self.relaxed_since, now)
        self.fewest_walks_per_worker = min(self.fewest_walks_per_worker, walks_per_worker)
        if now - self.relaxed_since >= period_s:
            self.safe_walks_per_worker = max(self.safe_walks_per_worker, ceil(self.fewest_walks_per_worker))
            self.relaxed_since, self.fewest_walks_per_worker = now, inf

    def scale_down(self, now: float, scale_down_delay_s: float, last_start_s: float) -> None:
        """Lower the target by one if there has been a surplus for long enough (step 5)."""
        delay_s = max(scale_down_delay_s, self.tuning.start_time_delay_factor * last_start_s)
        if self.target <= 1:
            delay_s *= self.tuning.last_replica_delay_factor
        if now - self.surplus_since >= delay_s:
            self.target -= 1
            self.surplus_since = inf


def build_replica_groups(models: Mapping[str, ConductorModel]) -> list[ReplicaGroup]:
    """Build the groups of all models. Placement rules that name the same workers share one group."""
    groups: dict[tuple[str, ...], ReplicaGroup] = {}
    for name, model in models.items():
        for workers, min_replicas in model.plans.replica_groups:
            group = groups.setdefault(workers, ReplicaGroup(workers, min_replicas))
            group.configured_min_replicas = max(group.configured_min_replicas, min_replicas)
            group.models.add(name)
    fixed = {name for group in groups.values() if not group.is_elastic for name in group.workers}
    for name, model in models.items():  # a walk without calls has a worker set that no placement rule names
        for worker_set in (worker_set for plan in model.plans.walks.values() for worker_set in plan.worker_sets):
            group = ReplicaGroup(worker_set.workers, sum(worker in fixed for worker in worker_set.workers))
            groups.setdefault(worker_set.workers, group).models.add(name)
    for group in groups.values():
        group.target = group.min_replicas
    return list(groups.values())
