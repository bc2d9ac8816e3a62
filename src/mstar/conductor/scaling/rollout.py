"""Rolling update of weights: replaces the workers of an older version one by one.

1. If no version is served in all groups of a model, because a worker was lost and loads the new weights, start a
   successor in each group that lacks the new version. Then wait while any worker starts, drains or stops.
2. If no worker has an older version, report `WeightsRolled` to the launcher. The rollout is complete.
3. Choose a group with old workers. First come the groups in which no worker has the new version, of the models that
   use it: a request starts with one version in all groups of its model.
4. If the group has a stopped worker and no replica above its target, start one (surge). A started worker loads the
   newest version.
5. Otherwise choose the old worker with the fewest running walks. If a group needs it to reach its target, and the
   launcher can, start its successor beside it: another process of the same worker, which serves as soon as it is up.
6. Drain an old worker that has a successor, or that its groups do not need. New requests start with the new version;
   the old worker finishes its requests, and the autoscaler stops it when it is idle.

Rollback of a rolling update: if a worker fails to start `max_failed_starts` times, the rollout stops. The old workers
keep serving, successors that are up drain, and the newest version is again the one that the old workers have. Starts of
a worker that was in a crash loop before the rollout do not count: the new weights are not their cause.

If a successor is lost while its predecessor drains, the predecessor serves again until the successor is back.

Requests keep the version they started with; see `weights_versions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.membership import WorkerLost
from mstar.conductor.outbox import Outbox
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.scaling.replica_group import ReplicaGroup
from mstar.conductor.worker import Worker
from mstar.wire.messages import Peer, ProcessExited, RolloutFailed, WeightsRolled


@dataclass(frozen=True, slots=True)
class RolloutTuning:
    """Constants of a rollout."""

    max_failed_starts: int = 2
    """Number of failed starts with the new weights after which the rollout stops."""


class Rollout:
    """Rolling update under one conductor."""

    def __init__(
        self, fleet: Fleet, limits: ConductorLimits, outbox: Outbox, tuning: RolloutTuning | None = None
    ) -> None:
        self.is_active = False
        self._fleet = fleet
        self._can_start_successors = limits.can_start_successors
        self._outbox = outbox
        self._tuning = tuning or RolloutTuning()
        self._surges: set[str] = set()
        """Workers that were started beside the old ones of their group, or whose successors were started."""
        self._failing_before: set[str] = set()
        """Workers that were in a crash loop when the rollout started, and have not registered since."""
        self._failed_version = -1
        """Version of the last rollout that failed."""

    def start(self, weights_version: int) -> None:
        """Start a rollout; ignore a version older than the newest."""
        if weights_version >= self._fleet.versions.newest and weights_version != self._failed_version:
            self._fleet.versions.newest = weights_version
            self.is_active = True
            names = (name for group in self._fleet.groups for name in group.workers)
            self._failing_before = {starts.peer.worker for starts in self._fleet.crash_loops.find(names)}

    def on_worker_started(self, now: float, worker: Worker) -> None:
        """Resume a rollout that an earlier conductor began: a worker has a newer version than others."""
        self._failing_before.discard(worker.peer.worker)
        versions, is_second = self._fleet.versions, self._is_second(worker.peer)
        if not is_second or worker.weights_version != self._failed_version:
            versions.newest = max(versions.newest, worker.weights_version)
        self.is_active |= bool(self._outdated()) and versions.newest != self._failed_version
        if is_second and not self.is_active:  # a successor that was starting when its rollout was rolled back
            worker.draining_since = now

    def on_worker_lost(self, lost: WorkerLost) -> None:
        """Let the other process of a lost worker serve again: it drained because the lost one served."""
        for other in self._fleet.membership.processes([lost.peer.worker]):
            if other.weights_version <= self._fleet.versions.newest:  # not one that was rolled back
                other.draining_since = None

    def on_exited(self, now: float, exited: ProcessExited) -> bool:
        """Roll back if a worker fails to start during the rollout; return whether it did."""
        fleet, worker = self._fleet, exited.peer.worker
        if not self.is_active or exited.failed_starts < self._tuning.max_failed_starts:
            return False
        # A process beside one that serves is a successor: an earlier conductor can have started it for this rollout.
        if worker in self._failing_before and not self._is_second(exited.peer):
            return False
        has_enough = all(len(fleet.serving(group)) >= group.target for group in fleet.groups_of_worker(worker))
        # An earlier conductor can have started the successor, so `_surges` does not have all of them.
        if has_enough and (worker in self._surges or self._is_second(exited.peer)):
            fleet.crash_loops.remove(worker)
            fleet.pending_workers.cancel_start(exited.peer)
        self._roll_back(now, worker, exited.reason)
        return True

    def _roll_back(self, now: float, worker: str, reason: str) -> None:
        """Stop the rollout. The newest version is the newest one that a worker keeps."""
        fleet, failed = self._fleet, self._fleet.versions.newest
        for process in fleet.membership.workers.values():
            if self._has_predecessor(process):
                process.draining_since = now
            else:  # it was to be replaced
                process.draining_since = None
        kept = (each for each in fleet.membership.workers.values() if each.draining_since is None)
        fleet.versions.newest = max((each.weights_version for each in kept), default=failed)
        fleet.versions.refresh()
        self.is_active, self._failed_version = False, failed
        self._surges.clear()
        self._outbox.send_launcher(RolloutFailed(failed, fleet.versions.newest, worker, reason))

    def step(self, now: float) -> None:
        """Replace one worker if nothing else is under way."""
        fleet, pending, membership = self._fleet, self._fleet.pending_workers, self._fleet.membership
        self._unblock_models(now)
        is_starting = bool(pending.expected(now, pending.pending_since))
        if is_starting or membership.stopping or membership.draining():
            return
        outdated = self._outdated()
        if not outdated:
            self.is_active = False
            self._surges.clear()
            self._outbox.send_launcher(WeightsRolled(fleet.versions.newest))
            return
        group = self._next_group(outdated)
        serving, stopped = fleet.serving(group), pending.stopped(group.workers)
        if stopped and len(serving) <= group.target:
            self._surges.add(stopped[0])
            pending.request_start(now, stopped[0])
            return
        old = [worker for worker in serving if self._is_outdated(worker)]
        replaced = [worker for worker in old if self._has_successor(worker)]
        chosen = min(replaced or old, key=lambda worker: (worker.weights_version, worker.running_walks))
        own_groups = fleet.groups_of_worker(chosen.peer.worker)
        is_surplus = all(len(fleet.serving(each)) > each.target for each in own_groups)  # after step 4
        if replaced or is_surplus or not self._can_start_successors:
            chosen.draining_since = now
        else:
            self._start_successor(now, chosen)

    def _unblock_models(self, now: float) -> None:
        """Start a successor in each group that keeps the requests of a model waiting (step 1)."""
        if not self._can_start_successors:
            return
        fleet, newest = self._fleet, self._fleet.versions.newest
        for model in sorted({model for group in fleet.groups for model in group.models}):
            serving = [fleet.serving(group) for group in fleet.groups_of_model(model)]
            versions = [{worker.weights_version for worker in workers} or {newest} for workers in serving]
            if not versions[0].intersection(*versions[1:]):
                for workers in (workers for workers in serving if workers and all(map(self._is_outdated, workers))):
                    self._start_successor(now, workers[0])

    def _start_successor(self, now: float, worker: Worker) -> None:
        pending, name = self._fleet.pending_workers, worker.peer.worker
        if name not in pending.pending_since:
            self._surges.add(name)
            pending.request_start(now, name, beside=worker.peer)

    def _next_group(self, outdated: set[str]) -> ReplicaGroup:
        """Choose the group in which a worker is replaced next (step 3)."""
        fleet = self._fleet
        groups = [group for group in fleet.groups if not outdated.isdisjoint(group.workers)]
        first = groups[0]
        models = {model for group in groups if not {*first.workers}.isdisjoint(group.workers) for model in group.models}
        related = (group for group in groups if not models.isdisjoint(group.models))
        return next((group for group in related if all(map(self._is_outdated, fleet.serving(group)))), first)

    def _outdated(self) -> set[str]:
        workers = self._fleet.membership.workers.values()
        return {worker.peer.worker for worker in workers if self._is_outdated(worker)}

    def _is_outdated(self, worker: Worker) -> bool:
        return worker.weights_version < self._fleet.versions.newest

    def _is_second(self, peer: Peer) -> bool:
        """Whether another process of its worker serves."""
        return any(other.peer != peer for other in self._fleet.membership.serving([peer.worker]))

    def _has_successor(self, worker: Worker) -> bool:
        others = self._fleet.membership.processes([worker.peer.worker])
        return any(other.weights_version > worker.weights_version for other in others)

    def _has_predecessor(self, worker: Worker) -> bool:
        others = self._fleet.membership.processes([worker.peer.worker])
        return any(other.weights_version < worker.weights_version for other in others)
