"""Timeouts of requests: deadline, TTFT target while queued, and the wait for a worker.

Requests are in a heap by the time at which they are checked next, and those that wait for a worker in groups
(`WaitingWalks`), so that a tick costs the same for any number of requests of which nothing is due.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from mstar.conductor.admission import Admission
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.recovery.request_retries import RequestRetries
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.requests import FinishStatus, Request, WalkRun
from mstar.conductor.scaling.fleet import Fleet
from mstar.wire.messages import RequestRejected

_MIN_HEAP = 64
"""Size up to which ended requests stay in the heap."""


@dataclass(frozen=True, slots=True)
class TimeoutTuning:
    """Constants of the timeouts."""

    starting_worker_wait_factor: float = 10.0
    """Factor on `worker_wait_s` while a suitable worker starts: large weights take minutes to load."""


class RequestTimeouts:
    """Ends requests that have waited or run for too long."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        retries: RequestRetries,
        admission: Admission,
        fleet: Fleet,
        limits: ConductorLimits,
        tuning: TimeoutTuning | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._retries = retries
        self._admission = admission
        self._fleet = fleet
        self._worker_wait_s = limits.worker_wait_s
        self._tuning = tuning or TimeoutTuning()
        self._checks: list[tuple[float, str]] = []
        """A heap: when a request is checked next, and its id. Some may have ended."""

    def tick(self, now: float) -> None:
        """Check every request of which something can be due, and the first ones of those that wait for workers."""
        due = self._lifecycle.take_submitted()
        while self._checks and self._checks[0][0] < now:
            due.append(heapq.heappop(self._checks)[1])
        for rid in due:
            if (request := self._lifecycle.requests.get(rid)) is not None:
                self._check_time(now, request)
        self._drop_ended()
        for request in self._lifecycle.find_waiting(lambda request: self._has_waited_in_vain(now, request)):
            self._end_worker_wait(now, request)

    def _check_time(self, now: float, request: Request) -> None:
        """End a request whose time is over; otherwise check it again when it can be."""
        if now > request.deadline:
            text = f"the request took longer than its timeout of {request.submit.timeout_s:g} s"
            self._lifecycle.finish(now, request, FinishStatus("deadline", "Deadline", text))
            return
        expires_at = self._admission.expires_at(request.rid, request.last_input_at)
        if now > expires_at:
            text = f"the request waited in the queue longer than its TTFT target of {request.submit.slo.ttft_s} s"
            wait_s = self._admission.estimate_wait_s(now)
            self._lifecycle.reject(now, request, RequestRejected(request.rid, 429, text, wait_s))
            return
        heapq.heappush(self._checks, (min(request.deadline, expires_at), request.rid))

    def _drop_ended(self) -> None:
        """Keep the heap at most about twice as large as the number of requests."""
        requests = self._lifecycle.requests
        if len(self._checks) > 2 * len(requests) + _MIN_HEAP:
            self._checks = [check for check in self._checks if check[1] in requests]
            heapq.heapify(self._checks)

    def _has_waited_in_vain(self, now: float, request: Request) -> bool:
        """Whether there will be no worker for the next walk of a request, or not in time."""
        run = request.walk_run
        assert run is not None
        is_lost = self._fleet.versions.is_version_lost(request, run.plan)
        return is_lost or now - run.waiting_since > self._max_worker_wait_s(run)

    def _end_worker_wait(self, now: float, request: Request) -> None:
        run = request.walk_run
        assert run is not None
        if self._fleet.versions.is_version_lost(request, run.plan):
            self._retries.restart_with_new_weights(now, request)
            return
        text = f"no worker became available within {self._max_worker_wait_s(run):g} s"
        self._lifecycle.finish(now, request, FinishStatus("unavailable", "Unavailable", text))

    def _max_worker_wait_s(self, run: WalkRun) -> float:
        is_starting = self._fleet.pending_workers.is_any_coming(run.plan)
        return self._worker_wait_s * (self._tuning.starting_worker_wait_factor if is_starting else 1.0)
