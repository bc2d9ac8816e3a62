"""Admission control and load shedding: which requests are rejected, queued and started.

A request is rejected at submission or while it waits in the queue, never after it has started. A request that an
earlier conductor admitted (resubmitted after a failover) is never rejected.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from mstar.conductor.attempts import Attempts
from mstar.conductor.capacity import CapacityEstimator
from mstar.conductor.fair_queue import FairQueue, count_down
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.requests import is_resubmitted
from mstar.tenant_share import has_share_left
from mstar.wire.messages import RequestRejected, Submit

SHUTDOWN_RETRY_S = 5.0
"""`Retry-After` while the server shuts down."""


class Admission:
    """Admission control of one conductor.

    On submission (`rejection`), for a request that is not resubmitted:

    1. The server drains: reject with 503.
    2. The queue has `max_queued_requests`, its tenant at least an equal share of them, and the request could not start
       at once: reject with 429 (backpressure). So one tenant cannot fill the queue for all others.
    3. The predicted time to first output exceeds the target of the request: reject with 429.
    4. Otherwise queue it.

    After every step (`admit_next`), while running + unreleased < `max_running_requests`:

    5. Look at the head of each flow of the fair queue, least served flow first.
    6. Start the first one that fits: its tenant has a share of the running requests left (`mstar.tenant_share`), and
       the workers have room (`CapacityEstimator.has_room`). If none fits, wait.

    While queued (`expires_at`): a request whose TTFT target has passed is rejected with 429.

    Example: `max_running_requests=2`, `max_queued_requests=1`. Of four requests at once, two start, one waits, and the
    fourth gets 429 with the estimated wait as `Retry-After`.
    """

    def __init__(self, limits: ConductorLimits, capacity: CapacityEstimator, attempts: Attempts) -> None:
        self.is_draining = False
        """Whether new requests are rejected because the server shuts down."""
        self._limits = limits
        self._capacity = capacity
        self._attempts = attempts
        self._queue = FairQueue()
        self._queued: dict[str, Submit] = {}
        self._running: dict[str, str] = {}
        """Tenant of each running request."""
        self._running_by_tenant: Counter[str] = Counter()
        self._queued_by_model: Counter[str] = Counter()

    @property
    def queue_length(self) -> int:
        """Number of requests waiting to start."""
        return len(self._queued)

    def queued_models(self) -> set[str]:
        """Return the models of the requests that wait to start."""
        return {*self._queued_by_model}

    def is_queued(self, rid: str) -> bool:
        """Return whether a request waits to start."""
        return rid in self._queued

    def has_share(self, tenant: str) -> bool:
        """Return whether a tenant can have another running request, apart from the global limit."""
        return has_share_left(tenant, self._running_by_tenant[tenant], max(1, self._free_slots()))

    # ---------------------------------------------------------------- submission
    def rejection(self, now: float, submit: Submit) -> RequestRejected | None:
        """Return why a request cannot be accepted, or None."""
        if is_resubmitted(submit):
            return None
        if self.is_draining:
            return RequestRejected(submit.rid, 503, "the server is shutting down", SHUTDOWN_RETRY_S)
        limit = self._limits.max_queued_requests
        if len(self._queued) >= limit and self._queue.has_share(submit, limit) and self._must_wait(submit):
            return RequestRejected(submit.rid, 429, f"the queue is full ({limit} requests)", self.estimate_wait_s(now))
        if submit.slo.ttft_s is None:
            return None
        overrun_s = self._capacity.ttft_overrun_s(now, submit, self._waiting_before(submit) + int(self._is_full()))
        if overrun_s:
            text = f"predicted time to first output exceeds the target of {submit.slo.ttft_s} s by {overrun_s:.1f} s"
            return RequestRejected(submit.rid, 429, text, overrun_s)
        return None

    def predict_ttft_s(self, now: float, submit: Submit) -> float:
        """Predict the time to first output of a request that is about to be queued; 0 if unknown."""
        is_full = self._is_full(additional=1)
        return self._capacity.predict_ttft_s(now, submit, self._waiting_before(submit) + int(is_full))

    def enqueue(self, submit: Submit) -> None:
        """Queue an accepted request."""
        self._queue.add(submit)
        self._queued[submit.rid] = submit
        self._queued_by_model[submit.model] += 1

    def _must_wait(self, submit: Submit) -> bool:
        """Whether a request could not start at once."""
        return self._is_full() or self._queue.is_flow_waiting(submit) or not self._has_room(submit)

    def _waiting_before(self, submit: Submit) -> int:
        """Number of queued requests that can start before a new one: not those of other tenants without a share."""
        lengths = self._queue.lengths.items()
        blocked = sum(n for tenant, n in lengths if tenant != submit.tenant and not self.has_share(tenant))
        return len(self._queued) - blocked

    def _is_full(self, additional: int = 0) -> bool:
        """Whether no further request can start, with `additional` more running."""
        return self._free_slots() <= additional

    @property
    def has_many_free_slots(self) -> bool:
        """Whether more requests can start than run, so that none waits for one that has ended."""
        return not self._queued and 2 * self._free_slots() > self._limits.max_running_requests

    def _free_slots(self) -> int:
        return self._limits.max_running_requests - len(self._running) - len(self._attempts)

    def _has_room(self, submit: Submit) -> bool:
        return self.has_share(submit.tenant) and self._capacity.has_room(submit)

    # ---------------------------------------------------------------- start and end
    def admit_next(self) -> str | None:
        """Take the next request that can start off the queue; return its id, or None."""
        if not self._queued or self._is_full():
            return None
        rid = next((rid for rid in self._queue.heads() if self._fits(self._queued[rid])), None)
        if rid is not None:
            self._queue.take(rid)
            submit = self._queued.pop(rid)
            count_down(self._queued_by_model, submit.model)
            self._running[rid] = submit.tenant
            self._running_by_tenant[submit.tenant] += 1
            self._capacity.on_admitted(submit)
        return rid

    def _fits(self, submit: Submit) -> bool:
        return is_resubmitted(submit) or self._has_room(submit)

    def expires_at(self, rid: str, last_input_at: float) -> float:
        """Return when the TTFT target of a request that waits in the queue has passed; infinity if it has none."""
        submit = self._queued.get(rid)
        if submit is None or submit.slo.ttft_s is None or is_resubmitted(submit):
            return inf
        return last_input_at + submit.slo.ttft_s

    def estimate_wait_s(self, now: float) -> float:
        """Estimate the seconds until the queue of now has started."""
        return self._capacity.estimate_wait_s(now, len(self._queued))

    def on_finished(self, now: float, rid: str) -> None:
        """Remove a request that is finished, whether it was queued or running."""
        if rid in self._queued:
            self._queue.remove(rid)
            count_down(self._queued_by_model, self._queued.pop(rid).model)
        else:
            count_down(self._running_by_tenant, self._running.pop(rid))
            self._capacity.on_finished(now, rid)
