"""Activity snapshot of a conductor for live views: its requests and workers. Nothing is stored for it."""

from __future__ import annotations

from itertools import islice

from mstar.conductor.capacity import CapacityEstimator
from mstar.conductor.membership import Membership
from mstar.conductor.requests import Request
from mstar.conductor.worker import Worker
from mstar.wire.activity import RequestStatus, WorkerActivity
from mstar.wire.messages import ActivityReply

MAX_REPORTED_REQUESTS = 1024
"""Maximum requests in a snapshot, newest first."""
UNKNOWN_UTILIZATION = -1.0


def build_activity(
    now: float,
    correlation_id: int,
    requests: dict[str, Request],
    membership: Membership,
    capacity: CapacityEstimator,
    queue_length: int,
) -> ActivityReply:
    """Build the reply to an `ActivityQuery`."""
    newest = islice(reversed(requests.values()), MAX_REPORTED_REQUESTS)
    return ActivityReply(
        correlation_id,
        requests=[_request_status(now, request) for request in newest],
        workers=[_worker_status(worker, capacity) for worker in membership.workers.values()],
        queue_length=queue_length,
    )


def _request_status(now: float, request: Request) -> RequestStatus:
    run = request.walk_run
    name, number, seats = "", request.walk_count, ()
    if run is not None:
        name, number = run.call.name, run.number
        seats = tuple(dict.fromkeys(peer.worker for peer in run.seats))
        state = "waiting" if run.is_waiting else "running"
    elif request.route is None:
        state = "queued"
    else:
        state = "awaiting_input" if request.is_awaiting_input else "running"
    age_s = now - request.submitted_at
    return RequestStatus(request.rid, request.submit.model, state, name, number, request.retries + 1, seats, age_s)


def _worker_status(worker: Worker, capacity: CapacityEstimator) -> WorkerActivity:
    name, load = worker.peer.worker, capacity.worker_load(worker.peer.worker)
    state = "up" if worker.draining_since is None else "draining"
    state = state if worker.is_responsive else "unresponsive"
    utilization = UNKNOWN_UTILIZATION if load is None else load.utilization
    return WorkerActivity(name, worker.peer.incarnation, state, utilization)
