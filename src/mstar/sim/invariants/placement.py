"""Invariant I23: no walk starts on a worker that does not respond, while another one could run its seat.

The exception is a seat that starts with a state of that worker: only there the walk goes on without computing the state
again. Parts of a state that were sent ahead are no exception.
"""

from __future__ import annotations

from mstar.conductor.requests import Request, WalkRun
from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor
from mstar.wire import messages as m


def check_responsive(process: SimConductor, start: m.StartWalk) -> None:
    """A conductor starts a walk: check the workers of its seats."""
    membership = process.core.membership
    request = process.core.lifecycle.requests.get(start.rid)
    run = None if request is None else request.walk_run
    if request is None or run is None or run.seats != start.seats or not membership.unresponsive:
        return
    for worker_set, peer in zip(run.plan.worker_sets, run.seats, strict=True):
        if membership.is_responsive(peer) or _holds_state(run, peer):
            continue
        if others := [
            other.peer for other in membership.serving(worker_set.workers) if _can_serve(process, request, other.peer)
        ]:
            raise Violation(f"I23 {start.rid} starts {start.walk_name} on {peer}, and {others[0]} responds")


def _holds_state(run: WalkRun, peer: m.Peer) -> bool:
    return any(handle.location is not None and handle.location.peer == peer for handle in run.handles.values())


def _can_serve(process: SimConductor, request: Request, peer: m.Peer) -> bool:
    membership = process.core.membership
    return membership.is_responsive(peer) and membership.workers[peer.name].weights_version == request.weights_version
