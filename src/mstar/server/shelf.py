"""A shelf: what a front end keeps for clients who come back. Each thing is one tenant's, for so long, and few enough.

It is memory of this front end: when that ends, the things are gone, and clients are told that there is no such thing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mstar.server.refusals import Refusal
from mstar.server.visit import Visit

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Kept(Generic[T]):
    tenant: str
    thing: T
    until: float


class Shelf(Generic[T]):
    """Things of one kind, by name. `dropped` is told of each that is gone."""

    def __init__(self, kind: str, limit: int, seconds: float, dropped: Callable[[T], None]) -> None:
        self._kind = kind
        self._limit = limit
        """How many each tenant may have."""
        self._seconds = seconds
        self._dropped = dropped
        self._kept: dict[str, _Kept[T]] = {}

    def put(self, tenant: str, make: Callable[[str], T]) -> T:
        """Keep a new thing, made with its name. Raises Refusal if the tenant has too many."""
        own = [kept.until for kept in self._kept.values() if kept.tenant == tenant]
        if len(own) >= self._limit:
            what = f"there are {len(own)} things of kind `{self._kind}`, as many as may be; delete one"
            raise Refusal(429, "too_many", what, retry_after=max(min(own) - time.monotonic(), 1.0))
        name = f"{self._kind}_{secrets.token_hex(16)}"
        thing = make(name)
        self._kept[name] = _Kept(tenant, thing, 0.0)
        self.renew(name)
        return thing

    def renew(self, name: str) -> None:
        """Keep a thing for the whole time from now on."""
        self._kept[name].until = time.monotonic() + self._seconds
        asyncio.get_running_loop().call_later(self._seconds + 0.01, self._expire, name)

    def _expire(self, name: str) -> None:
        if name in self._kept and self._kept[name].until <= time.monotonic():
            self._dropped(self._kept.pop(name).thing)

    def find(self, tenant: str, name: str) -> T:
        """A tenant's thing. Raises Refusal if it has none of this name."""
        kept = self._kept.get(name)
        if kept is None or kept.tenant != tenant:
            raise Refusal(404, "not_found", f"there is no {self._kind} of the name {name!r}, or not any more")
        return kept.thing

    def take(self, tenant: str, name: str) -> None:
        """Keep a tenant's thing no longer."""
        thing = self.find(tenant, name)
        del self._kept[name]
        self._dropped(thing)

    def all(self, tenant: str) -> list[T]:
        """A tenant's things, the oldest first."""
        return [kept.thing for kept in self._kept.values() if kept.tenant == tenant]

    def everything(self) -> Iterator[T]:
        """The things of all tenants."""
        return (kept.thing for kept in self._kept.values())


def tenant_of(visit: Visit) -> str:
    """Whose visit it is."""
    return visit.passage.tenant
