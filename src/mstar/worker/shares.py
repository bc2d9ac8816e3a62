"""What each key has had of an engine, so that what has no clock is shared by weight, and nobody takes it all.

A key that had nothing to do for a while is not paid back for it: it begins where the others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstar.worker.costs import Key
    from mstar.worker.order import Waiter


class Shares:
    """Seconds of the engine by tenant, each divided by its weight. Nothing is counted until there are two."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._now = 0.0
        """What the tenant had whose turn it was last."""

    def took(self, waiters: Sequence[Waiter], seconds: float) -> None:
        """A batch has taken so long."""
        if self._had:
            for waiter in waiters:
                start = waiter.tour.start
                had = self._had.get(start.tenant, self._now)
                self._had[start.tenant] = had + seconds / len(waiters) / start.pace.weight

    def turn(self, able: Mapping[Key, list[Waiter]]) -> Mapping[Key, list[Waiter]]:
        """What the tenant whose turn it is wants, with all who want the same; everything, if there is no other."""
        tenants = {waiter.tour.start.tenant for found in able.values() for waiter in found}
        if len(tenants) < 2 and not self._had:
            return able
        for tenant in tenants:
            self._had[tenant] = max(self._had.get(tenant, self._now), self._now)
        first = min(tenants, key=lambda tenant: (self._had[tenant], tenant))
        self._now = self._had[first]
        return {key: found for key, found in able.items() if any(one.tour.start.tenant == first for one in found)}

    def ordered(self, waiters: list[Waiter]) -> list[Waiter]:
        """Who takes part first if not all can."""
        if not self._had:
            return waiters
        return sorted(waiters, key=lambda waiter: self._had.get(waiter.tour.start.tenant, self._now))
