"""Invariant I19: preempted walk runs of a worker resume in the order in which they started."""

from __future__ import annotations

from collections import defaultdict

from mstar.sim.history import Violation
from mstar.sim.processes import SimWorker
from mstar.wire.messages import Peer


class PreemptionInvariants:
    """Checks I19 in one simulation."""

    def __init__(self) -> None:
        self._preempted: defaultdict[Peer, set[int]] = defaultdict(set)
        """By worker, the numbers of the preempted walk runs after its last step."""

    def on_worker_step(self, process: SimWorker) -> None:
        """A worker handled an event."""
        snapshot = process.core.snapshot()
        walk_runs = (request.walk_run for request in snapshot.requests)
        runs = {run.number: run for run in walk_runs if run is not None and not run.is_over}
        preempted = {number for number, run in runs.items() if run.is_preempted}
        before = self._preempted[process.peer]
        if resumed := (before - preempted) & runs.keys():
            waiting = {call.walk_run.number for call in snapshot.waiting_calls}
            passed_over = min(before & preempted & waiting, default=max(resumed))
            if passed_over < max(resumed):
                rids = [runs[number].request.rid for number in (max(resumed), passed_over)]
                raise Violation(f"I19 {process.peer} resumed {rids[0]} before {rids[1]}, which started earlier")
        self._preempted[process.peer] = preempted
