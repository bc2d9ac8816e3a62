"""Fair slots: a semaphore that serves the tenants in turn, and the waiters of a tenant in order.

One tenant cannot hold all slots: the last one is kept for the others, so that a short job of one tenant does not wait
for the long jobs of another. Without tenants there is no other to keep a slot for, and all of them are used.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairSlots:
    """A fixed number of slots. Used in one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._max_per_tenant = max(1, count - 1)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiters by tenant."""
        self._grants = 0
        self._last_grant: dict[str, int] = {}
        """Number of the last grant of each tenant. The tenant with the smallest number is next."""

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        """Wait for a slot and hold it inside the block."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted and cancelled at the same time
                self._release(tenant)
            raise
        try:
            yield
        finally:
            self._release(tenant)

    def _release(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._grant()

    def _grant(self) -> None:
        """Give free slots to the tenants in turn."""
        while self._free and (tenant := self._next_tenant()) is not None:
            granted = self._waiting[tenant].popleft()
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            if not granted.done():
                self._free -= 1
                self._held[tenant] += 1
                self._grants += 1
                self._last_grant[tenant] = self._grants
                granted.set_result(None)

    def _next_tenant(self) -> str | None:
        """Waiting tenant that was served least recently, of those that can have another slot."""
        tenants = [name for name in self._waiting if not name or self._held[name] < self._max_per_tenant]
        return min(tenants, key=lambda name: self._last_grant.get(name, 0), default=None)
