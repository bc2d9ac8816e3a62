"""What each key has had of an engine, so that what has no clock is shared by weight, and nobody takes it all.

A key that had nothing to do for a while is not paid back for it: it begins where the others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstar.worker.scheduling.cost_model import ModelBatchKey
    from mstar.worker.scheduling.policy import ReadyCall


class FairShare:
    """Seconds of the engine by tenant, each divided by its weight. Nothing is counted until there are two."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._virtual_now = 0.0
        """What the tenant had whose turn it was last."""

    def record_batch(self, calls: Sequence[ReadyCall], seconds: float) -> None:
        """A batch has taken so long."""
        if self._used_s:
            for waiter in calls:
                start = waiter.walk_run.start
                had = self._used_s.get(start.tenant, self._virtual_now)
                self._used_s[start.tenant] = had + seconds / len(calls) / start.slo.weight

    def next_tenant_calls(
        self, runnable: Mapping[ModelBatchKey, list[ReadyCall]]
    ) -> Mapping[ModelBatchKey, list[ReadyCall]]:
        """What the tenant whose turn it is wants, with all who want the same; everything, if there is no other."""
        tenants = {waiter.walk_run.start.tenant for found in runnable.values() for waiter in found}
        if len(tenants) < 2 and not self._used_s:
            return runnable
        for tenant in tenants:
            self._used_s[tenant] = max(self._used_s.get(tenant, self._virtual_now), self._virtual_now)
        first = min(tenants, key=lambda tenant: (self._used_s[tenant], tenant))
        self._virtual_now = self._used_s[first]
        return {
            key: found for key, found in runnable.items() if any(one.walk_run.start.tenant == first for one in found)
        }

    def order_by_usage(self, calls: list[ReadyCall]) -> list[ReadyCall]:
        """Who takes part first if not all can."""
        if not self._used_s:
            return calls
        return sorted(calls, key=lambda waiter: self._used_s.get(waiter.walk_run.start.tenant, self._virtual_now))
