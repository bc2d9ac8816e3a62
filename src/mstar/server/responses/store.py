"""Stored responses: the objects and input items of responses, by tenant, with a TTL and a bounded size.

They live in the memory of one front end and are lost when it stops. If there are several front ends, an id names the
one that has the response (`server.frontends.siblings`).

Clients store every response by default, so a full store does not reject requests. It drops responses, in this order:

1. Responses older than `RESPONSE_TTL_S`.
2. The oldest responses of a tenant that has more than `MAX_RESPONSES` or more than `MAX_TENANT_BYTES`.
3. If all tenants have more than `MAX_BYTES`: the oldest responses of the tenant that has the most bytes.

A response that is still running is not dropped. A response that is too large for the limits is not stored.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from mstar.server.errors import ApiError
from mstar.server.responses.events import ResponseBuilder
from mstar.server.responses.items import Item

RESPONSE_TTL_S = 3600.0
"""Seconds before a stored response is deleted."""
MAX_RESPONSES = 1024
"""Maximum stored responses of one tenant."""
MAX_TENANT_BYTES = 64 << 20
"""Maximum bytes of the stored responses of one tenant."""
MAX_BYTES = 512 << 20
"""Maximum bytes of the stored responses of all tenants."""
MAX_RUNNING = 16
"""Maximum background responses of one tenant that have not ended."""


@dataclass(eq=False)
class StoredResponse:
    """A response with its input. `input_items` includes the items of the previous responses."""

    builder: ResponseBuilder
    input_items: list[Item]
    task: asyncio.Task[None] | None = None
    """Task of a background response, until it ends."""
    size: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def conversation(self) -> list[Item]:
        """Items that a following response continues: the input and the output."""
        return [*self.input_items, *self.builder.output]


@dataclass(eq=False)
class _TenantResponses:
    by_id: dict[str, StoredResponse] = field(default_factory=dict[str, StoredResponse])
    """Oldest first."""
    size: int = 0


class ResponseStore:
    """The stored responses of one front end. Used in its event loop only."""

    def __init__(self) -> None:
        self._tenants = defaultdict[str, _TenantResponses](_TenantResponses)
        self.size = 0
        """Bytes of all stored responses."""

    def put(self, tenant: str, stored: StoredResponse) -> bool:
        """Store a response, or its new size. False if there is no room for it: its field `store` is then false."""
        response_id = stored.builder.response_id
        self._discard(tenant, response_id)
        stored.size = measure(stored.input_items) + measure(stored.builder.content)
        if not self._make_room(tenant, stored.size):
            stored.builder.content["store"] = False
            return False
        stored.timer = asyncio.get_running_loop().call_later(RESPONSE_TTL_S, self._expire, tenant, response_id)
        responses = self._tenants[tenant]
        responses.by_id[response_id] = stored
        responses.size += stored.size
        self.size += stored.size
        return True

    def _make_room(self, tenant: str, size: int) -> bool:
        """Drop responses until one of this size fits; False if it never does."""
        if size > MAX_TENANT_BYTES:
            return False
        while tenant in self._tenants and (
            len(self._tenants[tenant].by_id) >= MAX_RESPONSES or self._tenants[tenant].size + size > MAX_TENANT_BYTES
        ):
            if not self._drop_oldest(tenant):
                return False
        while self.size + size > MAX_BYTES:
            if not self._drop_oldest(max(self._tenants, key=lambda name: self._tenants[name].size)):
                return False
        return True

    def _drop_oldest(self, tenant: str) -> bool:
        """Drop the oldest response of a tenant that has ended; False if there is none."""
        for response_id, stored in self._tenants[tenant].by_id.items():
            if stored.task is None:
                self._discard(tenant, response_id)
                return True
        return False

    def _expire(self, tenant: str, response_id: str) -> None:
        stored = self._discard(tenant, response_id)
        if stored is not None and stored.task is not None:
            stored.task.cancel()

    def _discard(self, tenant: str, response_id: str) -> StoredResponse | None:
        responses = self._tenants[tenant]
        stored = responses.by_id.pop(response_id, None)
        if stored is not None:
            responses.size -= stored.size
            self.size -= stored.size
            if stored.timer is not None:
                stored.timer.cancel()
        if not responses.by_id:
            del self._tenants[tenant]
        return stored

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response with this id; None if this tenant does not have it."""
        return self._tenants[tenant].by_id.get(response_id) if tenant in self._tenants else None

    def find(self, tenant: str, response_id: str) -> StoredResponse:
        """The response with this id. Raises ApiError if this tenant does not have it."""
        stored = self.get(tenant, response_id)
        if stored is None:
            raise ApiError(404, "not_found", not_stored(response_id))
        return stored

    def remove(self, tenant: str, response_id: str) -> None:
        """Delete a response, and cancel it if it is running. Raises ApiError if this tenant does not have it."""
        self.find(tenant, response_id)
        self._expire(tenant, response_id)

    def count_running(self, tenant: str) -> int:
        """Background responses of a tenant that have not ended."""
        stored = self._tenants[tenant].by_id.values() if tenant in self._tenants else ()
        return sum(1 for response in stored if response.task is not None)


def not_stored(response_id: str) -> str:
    """The error text for a response that is not stored."""
    return (
        f"no response has the id {response_id[:64]!r}: it was not stored, was deleted, or was dropped after "
        f"{RESPONSE_TTL_S:g} s or for newer ones. fix: create a new one"
    )


def measure(value: Any) -> int:
    """Bytes of a JSON value in memory. Values that several responses share count for each."""
    size, stack = 0, [value]
    while stack:
        item = stack.pop()
        size += sys.getsizeof(item)
        if isinstance(item, dict):
            stack += cast("dict[str, Any]", item).values()
        elif isinstance(item, list):
            stack += cast("Iterable[Any]", item)
    return size
