"""Invariant I24: a call of a lookahead runs alone, on an idle engine, and only if no other call could run."""

from __future__ import annotations

from mstar.sim.history import Violation
from mstar.sim.processes import SimWorker
from mstar.worker.commands import Batch


def check_is_idle(process: SimWorker, batch: Batch) -> None:
    """A worker submits a batch to its engine: if it has a call of a lookahead, there is no other work."""
    snapshot = process.core.snapshot()
    jobs = {id(job) for job in batch.jobs}
    chosen = [call for call in snapshot.running_calls if id(call.job) in jobs]
    lookaheads = [call for call in chosen if call.walk_run.lookahead is not None]
    if not lookaheads:
        return
    rid = lookaheads[0].walk_run.request.rid
    if len(chosen) > 1:
        raise Violation(f"I24 {process.peer} runs a lookahead of {rid} in a batch with {len(chosen) - 1} other calls")
    others = [call for call in snapshot.running_calls if id(call.job) not in jobs]
    max_undelivered = process.simulation.scenario.worker_limits.max_undelivered_outputs
    others += [
        call
        for call in snapshot.waiting_calls
        if call.walk_run.lookahead is None and not call.walk_run.is_backpressured(max_undelivered)
    ]
    if others:
        raise Violation(
            f"I24 {process.peer} runs a lookahead of {rid} before a call of {others[0].walk_run.request.rid}"
        )
