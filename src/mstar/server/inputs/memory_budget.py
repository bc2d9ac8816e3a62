"""Memory budget of inputs: bounds the bytes of bodies, decoded media and realtime audio that requests hold together.

1. A request reserves the bytes of its body before it reads them, and those of its media before they are decoded.
2. A request above `max_request_bytes` gets status 413: it can never be served.
3. If the sum of all requests would exceed the budget, the request gets 429 and can be sent again.
4. With several tenants, one of them can hold at most half of the budget, so that the others are served.

The bytes are released when the request, its background response, its video job or the realtime session ends.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mstar.server.errors import ApiError

MEMORY_FRACTION = 8
"""The default budget is the memory of the machine divided by this number."""
MAX_REQUEST_BYTES = 512 << 20
"""Maximum bytes of the body and the decoded media of one request."""
RETRY_AFTER_S = 1.0
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def default_budget_bytes() -> int:
    """Budget for this machine: a share of its memory, or of the memory limit of its container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        limit = "max"
    return (min(memory, int(limit)) if limit.isdecimal() else memory) // MEMORY_FRACTION


class MemoryBudget:
    """The budget of one front end. Any thread can use it."""

    def __init__(self, total_bytes: int = 0, *, is_shared: Callable[[], bool] = lambda: False) -> None:
        """`total_bytes` of 0 takes the default; `is_shared` tells whether there are several tenants now."""
        self.total_bytes = total_bytes or default_budget_bytes()
        self._is_shared = is_shared
        self._max_request_bytes = MAX_REQUEST_BYTES
        self.held_bytes = 0
        self._held_by_tenant: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def max_tenant_bytes(self) -> int:
        """Maximum bytes of one tenant."""
        return self.total_bytes // 2 if self._is_shared() else self.total_bytes

    @property
    def max_request_bytes(self) -> int:
        """Maximum bytes of one request."""
        return min(self._max_request_bytes, self.max_tenant_bytes)

    def limit_requests(self, max_bytes: int) -> None:
        """Lower the maximum of one request."""
        self._max_request_bytes = min(self._max_request_bytes, max_bytes)

    def reserve(self, tenant: str, size: int) -> bool:
        """Reserve bytes; False if the budget or the share of the tenant does not have them."""
        with self._lock:
            if self.held_bytes + size > self.total_bytes or self._held_by_tenant[tenant] + size > self.max_tenant_bytes:
                return False
            self.held_bytes += size
            self._held_by_tenant[tenant] += size
            return True

    def release(self, tenant: str, size: int) -> None:
        """Give reserved bytes back."""
        with self._lock:
            self.held_bytes -= size
            self._held_by_tenant[tenant] -= size
            if not self._held_by_tenant[tenant]:
                del self._held_by_tenant[tenant]


class Reservation:
    """Bytes that one request or realtime session holds. A decoder thread can add while the event loop closes it."""

    def __init__(self, budget: MemoryBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._size = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, size: int, param: str | None = None) -> None:
        """Reserve more bytes; `param` names the request field in errors. Raises ApiError."""
        budget, prefix = self._budget, f"{param}: " if param else ""
        with self._lock:
            if self._size + size > budget.max_request_bytes:
                message = (
                    f"{prefix}the request with its decoded media has {self._size + size} bytes, the limit is "
                    f"{budget.max_request_bytes}. fix: send fewer or smaller files"
                )
                raise ApiError(413, "too_large", message, param=param)
            if self._is_closed or not budget.reserve(self._tenant, size):
                message = (
                    f"{prefix}the inputs of all requests exceed the memory budget of the server "
                    f"(max_input_memory_bytes). fix: retry after {RETRY_AFTER_S:g} s"
                )
                raise ApiError(429, "input_memory_full", message, param=param, retry_after=RETRY_AFTER_S)
            self._size += size

    def remove(self, size: int) -> None:
        """Give some bytes back."""
        with self._lock:
            self._release(size)

    def close(self) -> None:
        """Give all bytes back. Idempotent; nothing can be reserved afterwards."""
        with self._lock:
            self._release(self._size)
            self._is_closed = True

    def _release(self, size: int) -> None:
        if not self._is_closed:
            self._budget.release(self._tenant, size)
            self._size -= size
