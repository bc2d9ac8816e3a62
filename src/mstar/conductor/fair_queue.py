"""Weighted fair queue of requests by (tenant, class).

Each flow is FIFO. Between flows, the one with the smallest virtual time is served next; serving a request adds
`1 / weight` to the virtual time of its flow. A flow that was empty starts at the current virtual time, so that it
cannot save up credit.

Best-effort requests of a tenant form a flow of their own: a stream that does not fit blocks no background job.

Example: flow `a` has weight 2, flow `b` has weight 1. With both backlogged, the order is a b a a b a a b …
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from mstar.wire.messages import Submit

FlowKey = tuple[str, bool]
"""Tenant, and whether the requests are best effort."""


class FairQueue:
    """Ids of queued requests by flow."""

    def __init__(self) -> None:
        self._flows: dict[FlowKey, OrderedDict[str, None]] = {}
        self._virtual_times: dict[FlowKey, float] = {}
        self._weights: dict[FlowKey, float] = {}
        self._virtual_now = 0.0
        self._flow_by_request: dict[str, FlowKey] = {}
        self.lengths: Counter[str] = Counter()
        """Number of queued requests of each tenant that has some."""

    def __len__(self) -> int:
        return len(self._flow_by_request)

    def __contains__(self, rid: str) -> bool:
        return rid in self._flow_by_request

    def add(self, submit: Submit) -> None:
        """Append a request to its flow. The weight of the flow becomes that of its newest request."""
        flow = _flow_key(submit)
        if flow not in self._flows:
            self._flows[flow] = OrderedDict()
            self._virtual_times[flow] = self._virtual_now
        self._weights[flow] = submit.slo.weight
        self._flows[flow][submit.rid] = None
        self._flow_by_request[submit.rid] = flow
        self.lengths[submit.tenant] += 1

    def is_flow_waiting(self, submit: Submit) -> bool:
        """Return whether other requests of the same flow are queued."""
        return _flow_key(submit) in self._flows

    def has_share(self, submit: Submit, limit: int) -> bool:
        """Return whether the tenant of a request has at least an equal share of a queue of `limit` requests."""
        tenants = len(self.lengths) + (submit.tenant not in self.lengths)
        return self.lengths[submit.tenant] * tenants >= limit

    def heads(self) -> list[str]:
        """Return the first request of each flow, least served flow first."""
        flows = sorted(self._flows, key=lambda flow: (self._virtual_times[flow], flow))
        return [next(iter(self._flows[flow])) for flow in flows]

    def take(self, rid: str) -> None:
        """Remove a request because it starts, and charge its flow."""
        flow = self._flow_by_request[rid]
        self._virtual_now = max(self._virtual_now, self._virtual_times[flow])
        self._virtual_times[flow] += 1 / self._weights[flow]
        self.remove(rid)

    def remove(self, rid: str) -> None:
        """Remove a request without charging its flow."""
        flow = self._flow_by_request.pop(rid)
        count_down(self.lengths, flow[0])
        del self._flows[flow][rid]
        if not self._flows[flow]:
            del self._flows[flow], self._virtual_times[flow], self._weights[flow]


def count_down(counts: Counter[str], key: str) -> None:
    """Count one less, and drop a key with none left."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _flow_key(submit: Submit) -> FlowKey:
    return submit.tenant, submit.slo.best_effort
