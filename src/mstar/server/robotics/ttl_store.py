"""Per-tenant store with a TTL and a quota, for worlds and video jobs.

Entries live in the memory of one front end: they are lost when it stops, and clients then get 404. If there are
several front ends, an id names the one that has the entry (`server.frontends.siblings`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange

T = TypeVar("T")
TIMER_MARGIN_S = 0.01
"""Seconds after its expiry at which an item is removed. A timer of the event loop can fire slightly early."""


@dataclass(eq=False, slots=True)
class _Entry(Generic[T]):
    tenant: str
    item: T
    expires_at: float


class TtlStore(Generic[T]):
    """Items of one kind by id. Calls `on_removed` for each item that expires or is removed."""

    def __init__(self, kind: str, limit: int, ttl_s: float, on_removed: Callable[[T], None], id_mark: str = "") -> None:
        """`id_mark` is a part of every id."""
        self._kind = kind
        self._id_mark = id_mark
        self._limit = limit
        """Maximum items per tenant."""
        self._ttl_s = ttl_s
        self._on_removed = on_removed
        self._entries: dict[str, _Entry[T]] = {}

    def put(self, tenant: str, make: Callable[[str], T]) -> T:
        """Add the item that `make` creates for a new id. Raises ApiError if the tenant's quota is exhausted."""
        expiries = [entry.expires_at for entry in self._entries.values() if entry.tenant == tenant]
        if len(expiries) >= self._limit:
            retry_after = max(min(expiries) - asyncio.get_running_loop().time(), 1.0)
            message = (
                f"limit of {self._limit} {self._kind}s reached for this API key. "
                f"fix: delete one, or retry after {retry_after:.0f} s"
            )
            raise ApiError(429, "quota_exceeded", message, retry_after=retry_after)
        item_id = f"{self._kind}_{self._id_mark}{secrets.token_hex(16)}"
        item = make(item_id)
        self._entries[item_id] = _Entry(tenant, item, 0.0)
        self.touch(item_id)
        return item

    def touch(self, item_id: str) -> None:
        """Restart the TTL of an item."""
        loop = asyncio.get_running_loop()
        self._entries[item_id].expires_at = loop.time() + self._ttl_s
        loop.call_later(self._ttl_s + TIMER_MARGIN_S, self._expire, item_id)

    def _expire(self, item_id: str) -> None:
        if item_id in self._entries and self._entries[item_id].expires_at <= asyncio.get_running_loop().time():
            self._on_removed(self._entries.pop(item_id).item)

    def find(self, tenant: str, item_id: str) -> T:
        """Raises ApiError if the tenant has no such item."""
        entry = self._entries.get(item_id)
        if entry is None or entry.tenant != tenant:
            message = (
                f"no {self._kind} has the id {item_id[:64]!r}, or it was deleted or expired after {self._ttl_s:g} s. "
                "fix: create a new one"
            )
            raise ApiError(404, "not_found", message)
        return entry.item

    def remove(self, tenant: str, item_id: str) -> None:
        """Raises ApiError if the tenant has no such item."""
        item = self.find(tenant, item_id)
        del self._entries[item_id]
        self._on_removed(item)

    def items_of(self, tenant: str) -> list[T]:
        """Items of one tenant, oldest first."""
        return [entry.item for entry in self._entries.values() if entry.tenant == tenant]

    def values(self) -> Iterator[T]:
        """Items of all tenants."""
        return (entry.item for entry in self._entries.values())


def tenant_name(exchange: HttpExchange) -> str:
    """Tenant of a request; empty if the server has no API keys."""
    return exchange.context.tenant_name
