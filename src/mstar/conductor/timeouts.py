"""Timeouts of requests: deadline, TTFT target while queued, and the wait for a worker. Checked on every tick."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.conductor.admission import Admission
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.recovery.request_retries import RequestRetries
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.requests import FinishStatus, Request
from mstar.conductor.scaling.fleet import Fleet
from mstar.wire.messages import RequestRejected


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

    def tick(self, now: float) -> None:
        """Check every request."""
        for request in list(self._lifecycle.requests.values()):
            if now > request.deadline:
                text = f"the request took longer than its timeout of {request.submit.timeout_s:g} s"
                self._lifecycle.finish(now, request, FinishStatus("deadline", "Deadline", text))
            elif request.is_waiting_for_worker:
                self._check_worker_wait(now, request)
            elif self._admission.is_expired(now, request.rid, request.last_input_at):
                text = f"the request waited in the queue longer than its TTFT target of {request.submit.slo.ttft_s} s"
                wait_s = self._admission.estimate_wait_s(now)
                self._lifecycle.reject(now, request, RequestRejected(request.rid, 429, text, wait_s))

    def _check_worker_wait(self, now: float, request: Request) -> None:
        run = request.walk_run
        assert run is not None
        if self._fleet.versions.is_version_lost(request, run.plan):
            self._retries.restart_with_new_weights(now, request)
            return
        is_starting = self._fleet.pending_workers.is_any_coming(run.plan)
        limit_s = self._worker_wait_s * (self._tuning.starting_worker_wait_factor if is_starting else 1.0)
        if now - run.waiting_since > limit_s:
            text = f"no worker became available within {limit_s:g} s"
            self._lifecycle.finish(now, request, FinishStatus("unavailable", "Unavailable", text))
