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

from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Entry(Generic[T]):
    tenant: str
    item: T
    expires_at: float


class TtlStore(Generic[T]):
    """Things of one kind, by name. `dropped` is told of each that is gone."""

    def __init__(self, kind: str, limit: int, ttl_s: float, on_removed: Callable[[T], None]) -> None:
        self._kind = kind
        self._limit = limit
        """How many each tenant may have."""
        self._ttl_s = ttl_s
        self._on_removed = on_removed
        self._entries: dict[str, _Entry[T]] = {}

    def put(self, tenant: str, make: Callable[[str], T]) -> T:
        """Keep a new thing, made with its name. Raises Refusal if the tenant has too many."""
        own = [kept.expires_at for kept in self._entries.values() if kept.tenant == tenant]
        if len(own) >= self._limit:
            what = f"there are {len(own)} things of kind `{self._kind}`, as many as may be; delete one"
            raise ApiError(429, "quota_exceeded", what, retry_after=max(min(own) - time.monotonic(), 1.0))
        name = f"{self._kind}_{secrets.token_hex(16)}"
        thing = make(name)
        self._entries[name] = _Entry(tenant, thing, 0.0)
        self.touch(name)
        return thing

    def touch(self, name: str) -> None:
        """Keep a thing for the whole time from now on."""
        self._entries[name].expires_at = time.monotonic() + self._ttl_s
        asyncio.get_running_loop().call_later(self._ttl_s + 0.01, self._expire, name)

    def _expire(self, name: str) -> None:
        if name in self._entries and self._entries[name].expires_at <= time.monotonic():
            self._on_removed(self._entries.pop(name).item)

    def find(self, tenant: str, name: str) -> T:
        """A tenant's thing. Raises Refusal if it has none of this name."""
        kept = self._entries.get(name)
        if kept is None or kept.tenant != tenant:
            raise ApiError(404, "not_found", f"there is no {self._kind} of the name {name!r}, or not any more")
        return kept.item

    def remove(self, tenant: str, name: str) -> None:
        """Keep a tenant's thing no longer."""
        thing = self.find(tenant, name)
        del self._entries[name]
        self._on_removed(thing)

    def items_of(self, tenant: str) -> list[T]:
        """A tenant's things, the oldest first."""
        return [kept.item for kept in self._entries.values() if kept.tenant == tenant]

    def values(self) -> Iterator[T]:
        """The things of all tenants."""
        return (kept.item for kept in self._entries.values())


def tenant_name(exchange: HttpExchange) -> str:
    """Whose visit it is."""
    return exchange.context.tenant_name
