"""How things are at a conductor, for those who look on: who is under way, and who is there. Nothing is kept for it."""

from __future__ import annotations

from itertools import islice

from mstar.conductor.core import ConductorCore, Worker
from mstar.conductor.requests import Request
from mstar.wire.messages import News
from mstar.wire.news import RequestNews, WorkerNews

REQUESTS = 1024
"""Of so many requests it is told how they are, the newest."""


def news(now: float, ticket: int, core: ConductorCore) -> News:
    """How things are now."""
    newest = islice(reversed(core.requests.values()), REQUESTS)
    return News(
        ticket,
        requests=[_request(now, one) for one in newest],
        workers=[_worker(core, one) for one in core.workers.values()],
        queue=sum(one.route is None for one in core.requests.values()),
    )


def _request(now: float, one: Request) -> RequestNews:
    tour = one.tour
    if tour is None:
        state = "queued" if one.route is None else "listens" if one.is_waiting else "runs"
        return RequestNews(one.rid, one.submit.model, state, "", one.walks, one.restarts + 1, (), now - one.came)
    seats = tuple(dict.fromkeys(peer.name for peer in tour.seats))
    state = "runs" if seats else "waits"
    told = (one.rid, one.submit.model, state, tour.call.name, tour.number, one.restarts + 1, seats)
    return RequestNews(*told, now - one.came)


def _worker(core: ConductorCore, one: Worker) -> WorkerNews:
    name, state = one.peer.name, "up" if one.leaves is None else "leaving"
    load = core.admission.load_of(name)
    return WorkerNews(name, one.peer.incarnation, state, -1.0 if load is None else load.share)
