"""Invariant I14: scaling and rolling updates.

A worker stops only when no request needs it, its group keeps its minimum replicas, and no request mixes weights
versions.
"""

from __future__ import annotations

from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor
from mstar.wire import messages as m


class ScalingInvariants:
    """Checks I14 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._weights_versions: dict[tuple[m.Peer, str], set[int]] = {}
        """By conductor and request, the weights versions of its last walk."""

    def on_start_walk(self, process: SimConductor, start: m.StartWalk) -> None:
        """A walk starts: all seats must have one version, the same as before if the client has output."""
        simulation, key = self._simulation, (process.peer, start.rid)
        versions = {simulation.weights_versions[peer] for peer in start.seats}
        before = self._weights_versions.setdefault(key, versions)
        has_output = simulation.history.requests[start.rid].delivered or start.emitted_counts
        if len(versions) > 1 or (versions != before and has_output):
            raise Violation(f"I14 {start.rid} continues with weights versions {versions}, not {before}")
        self._weights_versions[key] = versions

    def on_stop_worker(self, process: SimConductor, peer: m.Peer) -> None:
        """A conductor stops a worker."""
        for request in process.core.lifecycle.requests.values():
            if request.needs(peer):
                raise Violation(f"I14 {request.rid} needs {peer}, which is being stopped")
        is_new = self._simulation.weights_versions[peer] == self._simulation.weights_version
        for group in process.core.autoscaler.groups:
            count = len(process.core.membership.serving(group.workers))
            if is_new and peer.name in group.workers and count < group.min_replicas:
                raise Violation(f"I14 {peer} stops, and {group.workers} has {count} of {group.min_replicas} replicas")

    def scaling_problems(self, process: SimConductor) -> list[str]:
        """Describe groups below their minimum or not scaled down, workers with two processes, incomplete rollouts."""
        scenario = self._simulation.scenario
        if not (scenario.is_elastic or scenario.weight_rolls):
            return []
        groups = [
            (group, len(process.core.membership.serving(group.workers))) for group in process.core.autoscaler.groups
        ]
        left = [
            f"{group.workers} has target {group.target}" for group, _ in groups if group.target > group.min_replicas
        ]
        left += [f"{group.workers} has only {count} replicas" for group, count in groups if count < group.min_replicas]
        processes = [worker.peer.worker for worker in process.core.membership.workers.values()]
        left += [f"{worker} has two processes" for worker in {*processes} if processes.count(worker) > 1]
        is_behind = self._simulation.launcher.rolled_version < self._simulation.weights_version
        return left + (["the launcher did not receive WeightsRolled"] if is_behind else [])
