"""Weighted fair queuing of engine time between tenants, for calls without a deadline.

Each tenant has a virtual time: engine seconds used, divided by its weight. The tenant with the least virtual time runs
next. A tenant that was idle does not collect credit: it resumes at the virtual time of the tenant served last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstar.worker.scheduling.cost_model import ModelBatchKey
from mstar.worker.scheduling.ready_call import ReadyCall


class FairShare:
    """Virtual time by tenant. Nothing is recorded until there are two tenants."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._virtual_now = 0.0
        """Virtual time of the tenant that was served last."""

    @property
    def has_usage(self) -> bool:
        """Whether there were two tenants."""
        return bool(self._used_s)

    def record_batch(self, calls: Sequence[ReadyCall], seconds: float) -> None:
        """Charge the tenants of a batch, each for its share."""
        if self._used_s:
            for call in calls:
                start = call.walk_run.start
                used_s = self._used_s.get(start.tenant, self._virtual_now)
                self._used_s[start.tenant] = used_s + seconds / len(calls) / start.slo.weight

    def next_tenant_calls(
        self, runnable: Mapping[ModelBatchKey, list[ReadyCall]]
    ) -> Mapping[ModelBatchKey, list[ReadyCall]]:
        """Batch keys that the next tenant needs, with the calls of all tenants; unchanged for a single tenant."""
        tenants = {call.walk_run.start.tenant for calls in runnable.values() for call in calls}
        if len(tenants) < 2 and not self._used_s:
            return runnable
        for tenant in tenants:
            self._used_s[tenant] = max(self._used_s.get(tenant, self._virtual_now), self._virtual_now)
        first = min(tenants, key=lambda tenant: (self._used_s[tenant], tenant))
        self._virtual_now = self._used_s[first]
        return {
            key: calls for key, calls in runnable.items() if any(call.walk_run.start.tenant == first for call in calls)
        }

    def order_by_usage(self, calls: list[ReadyCall]) -> list[ReadyCall]:
        """Calls with those of the least served tenant first, for a batch that cannot hold all."""
        if not self._used_s:
            return calls
        return sorted(calls, key=lambda call: self._used_s.get(call.walk_run.start.tenant, self._virtual_now))
