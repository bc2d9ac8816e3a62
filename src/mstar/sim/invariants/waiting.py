"""Invariant I22: no new request waits for a worker that drains or starts while others can serve it.

A rolling update on a single host starts the successor of a worker beside it, and in each group of a model before old
workers drain. So at any time there is a version of the weights with a process in every group, and a request that has
not started gets it at once. It is checked where successors are started.
"""

from __future__ import annotations

from mstar.conductor.requests import Request
from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor, SimWorker
from mstar.sim.scenario import DISTURBING_FAULTS

MAX_WAIT_S = 0.6
"""Maximum seconds a request waits: one evaluation of the autoscaler, ticks and messages."""
MIN_UP_S, MIN_UP_WITH_FAULTS_S = 0.6, 2.5
"""Seconds after which a process that is up counts: it has registered, and its conductor responds."""


class WaitingInvariants:
    """Checks I22 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._is_checked = simulation.scenario.conductor_limits.can_start_successors
        self._has_faults = bool(simulation.scenario.kinds & DISTURBING_FAULTS)

    def on_conductor_tick(self, process: SimConductor) -> None:
        """A conductor has checked its timeouts."""
        if not self._is_checked or not self._is_steady(process):
            return
        for request in process.core.lifecycle.requests.values():
            run = request.walk_run
            if run is None or not run.is_waiting or request.weights_version is not None:
                continue
            waited_s = self._simulation.now - run.waiting_since
            if waited_s > MAX_WAIT_S and self._can_be_served(process, request):
                raise Violation(f"I22 {request.rid} waits for {waited_s:.1f} s, and there are workers for it")

    def _can_be_served(self, process: SimConductor, request: Request) -> bool:
        """Whether each group of its model has a process that is up; with faults, all of one version."""
        groups = [group for group in process.core.autoscaler.groups if request.submit.model in group.models]
        versions = [
            {worker.core.weights_version for worker in self._steady_workers(process) if worker.peer.worker in names}
            for names in (group.workers for group in groups)
        ]
        return bool(set.intersection(*versions)) if self._has_faults else all(versions)

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
