"""Invariants I16 to I19, with the scenarios in which each one is checked."""

from __future__ import annotations

from mstar.sim.environment import Environment
from mstar.sim.invariants.deadline import DeadlineInvariants
from mstar.sim.invariants.execution import ExecutionInvariants
from mstar.sim.invariants.fairness import FairnessInvariants
from mstar.sim.invariants.preemption import PreemptionInvariants
from mstar.sim.processes import SimConductor, SimWorker
from mstar.wire import messages as m
from mstar.worker.commands import Batch


class FocusedInvariants:
    """Checks I16 to I19 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        kinds = simulation.scenario.kinds
        self.executions = ExecutionInvariants(simulation)
        self._deadlines = DeadlineInvariants(simulation) if "deadlines" in kinds else None
        self._fairness = FairnessInvariants(simulation) if "fairness" in kinds else None
        self._preemption = PreemptionInvariants() if "pages" in kinds else None

    def on_conductor_step(self, process: SimConductor) -> None:
        """A conductor handled an event."""
        if self._fairness is not None:
            self._fairness.on_conductor_step(process)

    def on_worker_step(self, process: SimWorker) -> None:
        """A worker handled an event; its actions are not executed yet."""
        if self._preemption is not None:
            self._preemption.on_worker_step(process)

    def on_emit(self, emit: m.Emit) -> None:
        """A worker sends an output."""
        self.executions.on_emit(emit)
        if self._deadlines is not None:
            self._deadlines.on_emit(emit)

    def on_batch_submitted(self, process: SimWorker, batch: Batch) -> None:
        """A worker submits a batch to its engine."""
        if self._deadlines is not None:
            self._deadlines.on_batch_submitted(process, batch)
        if self._fairness is not None:
            self._fairness.on_batch_submitted(process, batch)
