"""Invariant I22: no new request waits for a worker that drains or starts while others can serve it.

A rolling update on a single host starts the successor of a worker beside it, and in each group of a model before old
workers drain. So at any time there is a version of the weights with a process in every group, and a request that has
not started gets it at once. It is checked where successors are started.

The exception is a group that scales from zero during an update. Its first worker starts with the new weights, because
the files of the old ones are replaced. The other groups of its model get their successors at the same time, and a
request waits for the slowest of these starts, at most `MAX_COLD_START_S`.
"""

from __future__ import annotations

from math import inf

from mstar.conductor.requests import Request
from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor, SimWorker
from mstar.sim.scenario import DISTURBING_FAULTS
from mstar.sim.worker_processes import MAX_SUCCESSOR_START_S

MAX_WAIT_S = 0.6
"""Maximum seconds a request waits: one evaluation of the autoscaler, ticks and messages."""
MIN_UP_S, MIN_UP_WITH_FAULTS_S = 0.6, 2.5
"""Seconds after which a process that is up counts: it has registered, and its conductor responds."""
MAX_COLD_START_S = MAX_SUCCESSOR_START_S + MAX_WAIT_S
"""Maximum seconds after a group scaled from zero until the other groups of its model have its version."""


class WaitingInvariants:
    """Checks I22 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._is_checked = simulation.scenario.conductor_limits.can_start_successors
        self._has_faults = bool(simulation.scenario.kinds & DISTURBING_FAULTS)
        self._last_empty_at: dict[tuple[str, ...], float] = {}
        """By the workers of a group, the last time at which no process of the group was up."""

    def on_conductor_tick(self, process: SimConductor) -> None:
        """A conductor has checked its timeouts."""
        if not self._is_checked:
            return
        self._find_empty_groups(process)
        if not self._is_steady(process):
            return
        for request in process.core.lifecycle.requests.values():
            run = request.walk_run
            if run is None or not run.is_waiting or request.weights_version is not None:
                continue
            waited_s = self._simulation.now - run.waiting_since
            if waited_s > MAX_WAIT_S and self._can_be_served(process, request):
                raise Violation(f"I22 {request.rid} waits for {waited_s:.1f} s, and there are workers for it")

    def _find_empty_groups(self, process: SimConductor) -> None:
        others = self._simulation.processes.values()
        up = {other.peer.worker for other in others if isinstance(other, SimWorker) and other.is_up}
        for group in process.core.autoscaler.groups:
            if up.isdisjoint(group.workers):
                self._last_empty_at[group.workers] = self._simulation.now

    def _can_be_served(self, process: SimConductor, request: Request) -> bool:
        """Whether each group of its model has a process that is up, all of one version.

        Without faults the versions must agree, except for `MAX_COLD_START_S` after a group had no replicas.
        """
        groups = [group for group in process.core.autoscaler.groups if request.submit.model in group.models]
        versions = [
            {worker.core.weights_version for worker in self._steady_workers(process) if worker.peer.worker in names}
            for names in (group.workers for group in groups)
        ]
        if set.intersection(*versions):
            return True
        empty_at = max(self._last_empty_at.get(group.workers, -inf) for group in groups)
        return not self._has_faults and all(versions) and self._simulation.now - empty_at > MAX_COLD_START_S

    def _steady_workers(self, process: SimConductor) -> list[SimWorker]:
        others = self._simulation.processes.values()
        stopping = process.core.membership.stopping.values()
        workers = [other for other in others if isinstance(other, SimWorker) and other.peer not in stopping]
        return [worker for worker in workers if self._is_steady(worker)]

    def _is_steady(self, process: SimConductor | SimWorker) -> bool:
        """Whether a process has been up for a while and was not paused."""
        min_s = MIN_UP_WITH_FAULTS_S if self._has_faults else MIN_UP_S
        since = max(process.up_at, process.resumed_at)
        return process.is_up and process.inbox is None and self._simulation.now - since >= min_s
