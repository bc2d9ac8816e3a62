"""Rolling update of weights: replaces the workers of an older version one by one.

1. Wait while any worker starts, drains or stops.
2. If no worker has an older version, report `WeightsRolled` to the launcher. The rollout is complete.
3. Choose a group with old workers; first a group in which no worker has the new version.
4. If the group has a stopped worker and no replica above its target, start one (surge). A started worker loads the
   newest version.
5. Otherwise drain the old worker with the fewest running walks. The autoscaler stops it when it is idle, and starts
   it again because its group lacks a replica.

Requests keep the version they started with; see `weights_versions`.
"""

from __future__ import annotations

from mstar.conductor.outbox import Outbox
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.worker import Worker
from mstar.wire.messages import WeightsRolled


class Rollout:
    """Rolling update under one conductor."""

    def __init__(self, fleet: Fleet, outbox: Outbox) -> None:
        self.is_active = False
        self._fleet = fleet
        self._outbox = outbox

    def start(self, weights_version: int) -> None:
        """Start a rollout; ignore a version older than the newest."""
        if weights_version >= self._fleet.versions.newest:
            self._fleet.versions.newest = weights_version
            self.is_active = True

    def on_worker_started(self, worker: Worker) -> None:
        """Resume a rollout that an earlier conductor began: a worker has a newer version than others."""
        versions = self._fleet.versions
        versions.newest = max(versions.newest, worker.weights_version)
        self.is_active |= bool(self._outdated())

    def step(self, now: float) -> None:
        """Replace one worker if nothing else is under way."""
        fleet, pending, membership = self._fleet, self._fleet.pending_workers, self._fleet.membership
        is_starting = bool(pending.expected(now, pending.pending_since))
        if is_starting or membership.stopping or membership.draining():
            return
        outdated = self._outdated()
        if not outdated:
            self.is_active = False
            self._outbox.send_launcher(WeightsRolled(fleet.versions.newest))
            return
        groups = [group for group in fleet.groups if not outdated.isdisjoint(group.workers)]
        not_begun = [group for group in groups if all(map(self._is_outdated, fleet.serving(group)))]
        group = (not_begun or groups)[0]
        serving, stopped = fleet.serving(group), pending.stopped(group.workers)
        if stopped and len(serving) <= group.target:
            pending.request_start(now, stopped[0])
        else:
            old = filter(self._is_outdated, serving)
            min(old, key=lambda worker: (worker.weights_version, worker.running_walks)).draining_since = now

    def _outdated(self) -> set[str]:
        return {name for name, worker in self._fleet.membership.workers.items() if self._is_outdated(worker)}

    def _is_outdated(self, worker: Worker) -> bool:
        return worker.weights_version < self._fleet.versions.newest
