"""Invariants of an idle deployment: nothing is left (I5, I12), and no non-idempotent call ran twice (I7)."""

from __future__ import annotations

from collections import Counter, deque

from mstar.conductor.admission import Admission
from mstar.conductor.attempts import Attempts
from mstar.conductor.membership import Membership
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.scaling.autoscaler import Autoscaler
from mstar.conductor.scaling.pending_workers import PendingWorkers
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.invariants.scaling import ScalingInvariants
from mstar.sim.processes import SimConductor, SimWorker, process_stats
from mstar.worker.early_messages import EarlyMessages
from mstar.worker.inflight_batches import InflightBatches
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.scheduling.scheduler import Scheduler
from mstar.worker.state_table import StateTable
from mstar.worker.walk_data import WalkDataSender
from mstar.worker.walk_execution import WalkExecution

CHECKED_PARTS = (
    *(Admission, Attempts, Autoscaler, Membership, PendingWorkers, RequestLifecycle, WeightsVersions),
    *(EarlyMessages, InflightBatches, Outbox, RequestTable, Scheduler, StateTable, WalkDataSender, WalkExecution),
)
"""Parts of cores whose collections must be empty at the end."""
BOUNDED_FIELDS = frozenset(
    {
        *("models", "plans", "workers", "frontends", "dead_peers", "groups", "conductors"),
        *(
            "_models",
            "_plans",
            "_groups",
            "_known_workers",
            "_initial_workers",
            "_last_requested_at",
            "_recent_versions",
            "_deadlines",
            "_peers_by_worker",
        ),
        *("_components", "_ended", "_cost", "_finished_attempts", "_generations"),
    }
)
"""Collections that can be non-empty at the end: their size is bounded by the deployment or by a constant."""


class FinalState:
    """Checks what one simulation leaves behind."""

    def __init__(self, simulation: Environment, scaling: ScalingInvariants) -> None:
        self._simulation = simulation
        self._scaling = scaling

    def is_quiet(self) -> bool:
        """Return whether no work is left anywhere."""
        return not self._remaining_work()

    def _remaining_work(self) -> list[str]:
        """Describe unfinished work and leftovers."""
        simulation = self._simulation
        history, processes = simulation.history, simulation.processes
        if len(history.requests) < len(simulation.scenario.clients):
            return ["not all clients have submitted"]
        if simulation.weights_version < len(simulation.scenario.weight_rolls):
            return ["not all rolling updates have started"]
        left = [f"{rid} is open" for rid in history.pending_requests()]
        names = [name for name in simulation.peers if name not in simulation.inactive]
        left += [f"{name} is not up" for name in names if name not in processes or not processes[name].is_up]
        if left:
            return left
        if simulation.fault_injector.is_draining and not simulation.launcher.is_drained:
            left.append("the launcher did not receive Drained")
        for process in processes.values():
            stats = process_stats(process)
            if isinstance(process, SimConductor):
                membership, own = process.core.membership, simulation.shards.processes(process.peer.name)
                workers = [simulation.peers[name] for name in own if name in names]
                left += self._scaling.scaling_problems(process)
                left += [f"the conductor does not know {peer}" for peer in workers if not membership.is_alive(peer)]
                busy = [worker.peer for worker in membership.workers.values() if worker.running_walks]
                left += [f"the conductor counts running walks at {peer}" for peer in busy]
                del stats["workers"]
            elif isinstance(process, SimWorker):
                stats["in the engine"] = len(process.engine.states) + (process.engine.batch is not None)
            left += [f"{process.peer} has {count} {name}" for name, count in stats.items() if count]
            left += [f"{process.peer} is paused"] if process.inbox is not None else []
        if unacked := simulation.launcher.unacked_frames():
            left.append(f"the launcher has {unacked} unacked")
        return left

    def raise_not_quiet(self) -> None:
        """Raise: work is left long after the last fault."""
        left = self._remaining_work()
        number = "I9" if any("is open" in problem for problem in left) else "I5"
        raise Violation(f"{number} long after the last fault: {', '.join(left)}")

    def check(self) -> None:
        """Check what can only be checked when everything is idle."""
        repeated = [call for call, count in Counter(self._simulation.non_idempotent_calls).items() if count > 1]
        if repeated:
            raise Violation(f"I7 non-idempotent calls ran twice: {repeated}")
        for process in self._simulation.processes.values():
            parts = [process.core, *(part for part in vars(process.core).values() if isinstance(part, CHECKED_PARTS))]
            for part in parts:
                for name, field in vars(part).items():
                    if name not in BOUNDED_FIELDS and isinstance(field, dict | list | deque | set) and field:
                        raise Violation(f"I12 {process.peer} is left with {len(field)} in {type(part).__name__}.{name}")
            if isinstance(process, SimConductor):
                workers = process.core.membership.workers.values()
                if kept := [rid for worker in workers for rid in worker.all_requests()]:
                    raise Violation(f"I12 {process.peer} is left with {kept} at its workers")
