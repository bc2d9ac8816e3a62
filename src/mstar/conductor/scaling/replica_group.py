"""Crews: workers that hold the same components. How many of each should run, by what they have to do.

Nothing is sent here: see `scaling`. A crew that always runs whole is one too, because its workers are replaced one by
one when there are new weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING

from mstar.conductor.admission import MAX_STREAM_UTILIZATION

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore, ConductorModel, Worker

SCALE_DOWN_UTILIZATION = 0.6
"""So much of each worker streams may need once there is one worker less: what comes next has room, and a crew that has
shrunk does not grow at once."""
MAX_BACKLOG_BATCHES = 3
"""So many batches that wait at each worker, time and again, are too much to do: calls wait longer than they run."""
LATENESS_WINDOW_S = 0.5
"""For so many seconds a late emission says that there is too much to do; a crew that grows was late again and again."""
SCALE_UP_DELAY_DIVISOR = 5.0
"""A crew grows so many times sooner than it shrinks: clients wait for the one, and only money for the other."""
LAST_REPLICA_DELAY_FACTOR = 2.0
"""The last worker stays so many times longer: whoever asks next waits until one is up."""
START_TIME_DELAY_FACTOR = 3.0
"""Fewer have to do for so many times as long as a start takes, so that nobody waits for what has just been ended."""


@dataclass(eq=False, slots=True)
class ReplicaGroup:
    """Some workers of which a request uses one, and what is known of their work."""

    workers: tuple[str, ...]
    configured_min_replicas: int
    """So many of them always run, but while all its models rest."""
    models: set[str] = field(default_factory=set[str])
    target: int = 0
    """How many should run."""
    is_unloaded: bool = False
    """Whether all its models were told to rest."""
    safe_walks_per_worker: int = 1
    """How many walks at each of them were no trouble."""
    last_requested_at: float = -inf
    """When there last was a request that could use it."""
    overloaded_since: float = inf
    """Since when it has too much to do."""
    relaxed_since: float = inf
    """Since when nothing waits, or since the last look at it."""
    fewest_walks_per_worker: float = inf
    """How many walks each worker had since then, at least."""
    surplus_since: float = inf
    """Since when fewer would do."""
    late_emissions: int = 0
    """How many emissions had been late when it was last looked at."""
    last_late_at: float = -inf
    """When it was found that there were more."""

    @property
    def min_replicas(self) -> int:
        """How many of its workers have to run now."""
        return 0 if self.is_unloaded else self.configured_min_replicas

    @property
    def is_elastic(self) -> bool:
        """Whether it may have fewer workers than it names."""
        return self.min_replicas < len(self.workers)

    def running(self, core: ConductorCore) -> list[Worker]:
        """Its workers that are there and stay."""
        found = (core.workers.get(name) for name in self.workers)
        return [worker for worker in found if worker is not None and worker.draining_since is None]


def build_replica_groups(models: Mapping[str, ConductorModel]) -> list[ReplicaGroup]:
    """The crews of all models: one for all entries of placements that name the same workers."""
    found: dict[tuple[str, ...], ReplicaGroup] = {}
    for model, one in models.items():
        for workers, least in one.plans.replica_groups:
            crew = found.setdefault(workers, ReplicaGroup(workers, least))
            crew.configured_min_replicas = max(crew.configured_min_replicas, least)
            crew.models.add(model)
    always = {name for crew in found.values() if not crew.is_elastic for name in crew.workers}
    for model, one in models.items():  # a walk that calls nothing has a spot that no entry names
        for spot in (spot for plan in one.plans.walks.values() for spot in plan.worker_sets):
            crew = ReplicaGroup(spot.workers, sum(name in always for name in spot.workers))
            found.setdefault(spot.workers, crew).models.add(model)
    for crew in found.values():
        crew.target = crew.min_replicas
    return list(found.values())


def update_target(
    core: ConductorCore, now: float, group: ReplicaGroup, queued_models: Sequence[str], starting: Iterable[str]
) -> None:
    """Set how many of a crew should run; requests of the models that `waits` names have not begun."""
    if group.is_unloaded:  # what was there before may end; whoever comes now wakes it
        group.target = max(1, group.target) if group.last_requested_at == now else 0
        return
    running = group.running(core)
    if group.last_requested_at == now and not group.target:
        group.target = 1
    loads = [load for worker in running if (load := core.admission.worker_load(worker.peer.name)) is not None]
    share, waiting = sum(load.utilization for load in loads), sum(load.queued_batches for load in loads)
    walks, count = sum(worker.running_walks for worker in running), max(1, len(running))
    late = sum(load.deadline_misses for load in loads)
    if late > group.late_emissions:
        group.last_late_at = now
    group.late_emissions = late
    is_late = now - group.last_late_at < LATENESS_WINDOW_S and bool(walks)
    is_queued = any(model in group.models for model in queued_models)
    is_pressed = bool(running) and (
        share > MAX_STREAM_UTILIZATION * count or waiting >= MAX_BACKLOG_BATCHES * count or is_late or is_queued
    )
    group.overloaded_since = min(group.overloaded_since, now) if is_pressed else inf
    is_worn = now - group.overloaded_since > LATENESS_WINDOW_S  # what was late once does not count
    _learn_capacity(group, now, core.limits.scale_down_delay_s, inf if waiting or is_worn else walks / count)
    is_growing = any(name in group.workers for name in starting) or len(running) < group.target
    if now - group.overloaded_since >= core.limits.scale_down_delay_s / SCALE_UP_DELAY_DIVISOR and not is_growing:
        group.target = min(len(group.workers), max(group.target + 1, ceil(share / MAX_STREAM_UTILIZATION)))
        group.safe_walks_per_worker = max(1, min(group.safe_walks_per_worker, ceil(walks / count) - 1))
        group.overloaded_since = inf
    fewer = group.target - 1
    has_room = (
        share <= SCALE_DOWN_UTILIZATION * fewer
        and walks <= group.safe_walks_per_worker * fewer
        and waiting < count
        and not is_queued
    )
    is_enough = fewer >= group.min_replicas and (has_room and not is_worn if fewer else group.last_requested_at < now)
    group.surplus_since = min(group.surplus_since, now) if is_enough else inf


def _learn_capacity(group: ReplicaGroup, now: float, period_s: float, walks_per_worker: float) -> None:
    """Take note of how many walks at each worker are no trouble for some time; infinite if now there is some."""
    if walks_per_worker == inf:
        group.relaxed_since, group.fewest_walks_per_worker = inf, inf
        return
    group.relaxed_since, group.fewest_walks_per_worker = (
        min(group.relaxed_since, now),
        min(group.fewest_walks_per_worker, walks_per_worker),
    )
    if now - group.relaxed_since >= period_s:
        group.safe_walks_per_worker = max(group.safe_walks_per_worker, ceil(group.fewest_walks_per_worker))
        group.relaxed_since, group.fewest_walks_per_worker = now, inf


def scale_down(core: ConductorCore, now: float, group: ReplicaGroup, start_s: float) -> None:
    """Want one worker less, if that would have done for long enough; starts take so many seconds."""
    wait = max(core.limits.scale_down_delay_s, START_TIME_DELAY_FACTOR * start_s) * (
        1.0 if group.target > 1 else LAST_REPLICA_DELAY_FACTOR
    )
    if now - group.surplus_since >= wait:
        group.target -= 1
        group.surplus_since = inf
