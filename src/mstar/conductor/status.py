"""How things are at a conductor, for those who look on: who is under way, and who is there. Nothing is kept for it."""

from __future__ import annotations

from itertools import islice

from mstar.conductor.core import ConductorCore, Worker
from mstar.conductor.requests import Request
from mstar.wire.activity import RequestStatus, WorkerActivity
from mstar.wire.messages import ActivityReply

MAX_REPORTED_REQUESTS = 1024
"""Of so many requests it is told how they are, the newest."""


def build_activity(now: float, ticket: int, core: ConductorCore) -> ActivityReply:
    """How things are now."""
    newest = islice(reversed(core.requests.values()), MAX_REPORTED_REQUESTS)
    return ActivityReply(
        ticket,
        requests=[_request_status(now, one) for one in newest],
        workers=[_worker_status(core, one) for one in core.workers.values()],
        queue_length=sum(one.route is None for one in core.requests.values()),
    )


def _request_status(now: float, request: Request) -> RequestStatus:
    tour = request.walk_run
    if tour is None:
        state = "queued" if request.route is None else "awaiting_input" if request.is_awaiting_input else "running"
        return RequestStatus(
            request.rid,
            request.submit.model,
            state,
            "",
            request.walk_count,
            request.retries + 1,
            (),
            now - request.submitted_at,
        )
    seats = tuple(dict.fromkeys(peer.name for peer in tour.seats))
    state = "running" if seats else "waiting"
    told = (request.rid, request.submit.model, state, tour.call.name, tour.number, request.retries + 1, seats)
    return RequestStatus(*told, now - request.submitted_at)


def _worker_status(core: ConductorCore, worker: Worker) -> WorkerActivity:
    name, state = worker.peer.name, "up" if worker.draining_since is None else "draining"
    load = core.admission.worker_load(name)
    return WorkerActivity(name, worker.peer.incarnation, state, -1.0 if load is None else load.utilization)
