"""Versions of the weights: which workers a request can use, so that it never mixes two versions.

During a rolling update workers of two versions serve side by side. A request starts with the newest version that every
group of its model serves, and finishes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstar.conductor.membership import Membership
from mstar.conductor.requests import Request, is_resubmitted
from mstar.conductor.scaling.replica_group import ReplicaGroup
from mstar.plan.tables import Plan
from mstar.wire.messages import Peer

MAX_RECENT_REQUESTS = 4096
"""Number of finished requests whose weights version is remembered."""


class WeightsVersions:
    """Weights versions of the workers and requests of one conductor."""

    def __init__(self, groups: Sequence[ReplicaGroup], membership: Membership) -> None:
        self.newest = 0
        """The newest known version."""
        self.is_uniform = True
        """Whether all workers have the newest version and none drains, as of the last `refresh`."""
        self._groups = groups
        self._membership = membership
        self._recent_versions: dict[str, int] = {}
        """By id of a finished request: its client can miss output and submit it again."""
        self._requests: dict[tuple[int, str], dict[str, Request]] = {}
        """By version and model, the requests that have this version."""

    def refresh(self) -> None:
        """Update `is_uniform`, the fast path of `eligible_workers`."""
        workers = self._membership.workers.values()
        self.is_uniform = all(
            worker.draining_since is None and worker.weights_version == self.newest for worker in workers
        )

    def set_version(self, request: Request, version: int | None) -> None:
        """Set the version of a request: that of the workers it starts on, or None before a start with any version."""
        if version != request.weights_version:
            self._remove(request)
            request.weights_version = version
            if version is not None:
                self._requests.setdefault((version, request.submit.model), {})[request.rid] = request

    def _remove(self, request: Request) -> None:
        if request.weights_version is not None:
            key = (request.weights_version, request.submit.model)
            del self._requests[key][request.rid]
            if not self._requests[key]:
                del self._requests[key]

    def on_request_finished(self, request: Request) -> None:
        """Remember the version of a finished request."""
        self._remove(request)
        if request.weights_version is not None:
            self._recent_versions[request.rid] = request.weights_version
            if len(self._recent_versions) > MAX_RECENT_REQUESTS:
                del self._recent_versions[next(iter(self._recent_versions))]

    def version_of_finished(self, rid: str) -> int | None:
        """Return the version that a finished request had, if it is remembered."""
        return self._recent_versions.get(rid)

    def eligible_workers(self, request: Request, plan: Plan) -> Mapping[str, Peer]:
        """Return the processes that a walk can use, by worker. Two processes of one worker differ in their version.

        1. Only workers with the version of the request, or, for a request that starts, with the one chosen for it.
        2. Draining workers only where no other worker of a seat has that version, and the request has started.
        """
        if self.is_uniform and request.weights_version in (None, self.newest):
            return self._membership.peers_by_worker()
        workers = self._membership.workers
        has_started = request.weights_version is not None
        version = request.weights_version if has_started else self._starting_version(request)
        same_version = [worker for worker in workers.values() if worker.weights_version == version]
        eligible = {worker.peer.worker: worker.peer for worker in same_version if worker.draining_since is None}
        if has_started:
            for worker_set in plan.worker_sets:
                if not any(name in eligible for name in worker_set.workers):
                    names = worker_set.workers
                    eligible |= {each.peer.worker: each.peer for each in same_version if each.peer.worker in names}
        return eligible

    def _starting_version(self, request: Request) -> int | None:
        """The newest version that every group of the model serves; the oldest for a resubmitted request."""
        is_newest_first = not is_resubmitted(request.submit)
        workers = self._membership.workers.values()
        versions = sorted({worker.weights_version for worker in workers}, reverse=is_newest_first)
        groups = [group for group in self._groups if request.submit.model in group.models]
        serving = [self._membership.serving(group.workers) for group in groups]
        for version in versions:
            is_newest = version == self.newest  # an empty group starts with the newest version
            if all(
                any(worker.weights_version == version for worker in group) or (is_newest and not group)
                for group in serving
            ):
                return version
        return None

    def is_needed(self, version: int, model: str) -> bool:
        """Return whether a request of a model needs a version to go on."""
        if (requests := self._requests.get((version, model))) is None:
            return False
        # In the queue, a request that was submitted again can have a version that is no longer in all groups.
        return self._is_in_all_groups(version, model) or any(each.walk_run is not None for each in requests.values())

    def fleet_state(self) -> tuple[object, ...]:
        """Return everything about workers that decides which of them are eligible for a request, and respond."""
        workers = self._membership.workers.values()
        states = (
            (each.peer, each.weights_version, each.draining_since is None, each.is_responsive) for each in workers
        )
        return (self.newest, self.is_uniform, *states)

    def _is_in_all_groups(self, version: int, model: str) -> bool:
        """Return whether each group of a model has a process with a version, draining or not."""
        groups = [group for group in self._groups if model in group.models]
        processes = [self._membership.processes(group.workers) for group in groups]
        return all(any(worker.weights_version == version for worker in group) for group in processes)

    def is_version_lost(self, request: Request, plan: Plan) -> bool:
        """Return whether no worker has the version of a request, and none will: workers start with the newest.

        The version of a rollout that was rolled back is newer than the newest.
        """
        if request.weights_version in (None, self.newest):
            return False
        workers = self._membership.workers.values()
        names = {worker.peer.worker for worker in workers if worker.weights_version == request.weights_version}
        return any(names.isdisjoint(worker_set.workers) for worker_set in plan.worker_sets)
