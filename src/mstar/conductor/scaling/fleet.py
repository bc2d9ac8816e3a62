"""The workers of a conductor as scaling sees them: replica groups, live workers, starting workers and versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar.conductor.membership import Membership
from mstar.conductor.scaling.crash_loops import CrashLoops, FailedStarts
from mstar.conductor.scaling.pending_workers import PendingWorkers
from mstar.conductor.scaling.replica_group import ReplicaGroup
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.conductor.worker import Worker


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts that autoscaler, rollout and model loading share."""

    groups: Sequence[ReplicaGroup]
    membership: Membership
    pending_workers: PendingWorkers
    crash_loops: CrashLoops
    versions: WeightsVersions

    def serving(self, group: ReplicaGroup) -> list[Worker]:
        """Return the workers of a group that are live and not draining."""
        return self.membership.serving(group.workers)

    def groups_of_model(self, model: str) -> list[ReplicaGroup]:
        """Return the groups that a model uses."""
        return [group for group in self.groups if model in group.models]

    def failing_workers(self, group: ReplicaGroup) -> list[FailedStarts]:
        """Return the workers of a group if all of them are in a crash loop, so that it cannot serve."""
        failing = self.crash_loops.find(group.workers)
        return failing if len(failing) == len(group.workers) and not self.serving(group) else []

    def groups_of_worker(self, worker: str) -> list[ReplicaGroup]:
        """Return the groups that a worker belongs to."""
        return [group for group in self.groups if worker in group.workers]
