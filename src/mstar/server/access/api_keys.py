"""Keys: who may come in, how much each may ask for, and what each is promised.

Keys are kept as digests, and compared in constant time. How a key reaches the server, and what a refused client is
told, is decided by others.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from mstar.config import RateLimit
from mstar.wire.slo import Slo

__all__ = ["ApiKeys", "RateLimit", "Tenant", "hash_key"]


def hash_key(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


class Tenant:
    """Who holds one key: its name in logs, what it is promised, and what it has asked for lately."""

    def __init__(self, name: str, rate_limit: RateLimit, slo: Slo | None = None) -> None:
        self.name = name
        """What the operator calls it, or a few digits of the key's digest."""
        self.slo = slo or Slo()
        """What is promised for a request that says nothing of it."""
        self.active_requests = 0
        self._rate_limit = rate_limit
        self._tokens = float(rate_limit.max_concurrent)
        self._refilled_at = float("-inf")

    def acquire(self, now: float) -> float:
        """For how many seconds it may not begin another request; if 0, one is taken off its account."""
        if self.active_requests >= self._rate_limit.max_concurrent:
            return 1.0
        rate = self._rate_limit.requests_per_second
        self._tokens = min(float(self._rate_limit.max_concurrent), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class ApiKeys:
    """The keys of a server; `named` are those whose holders have a name, by digest. Without any, all may come in."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        rate_limit: RateLimit | None = None,
        tenants: Mapping[bytes, Tenant] | None = None,
        slo: Slo | None = None,
    ) -> None:
        rate_limit = rate_limit or RateLimit()
        digests = map(hash_key, keys)
        self._tenants = {digest: Tenant(digest.hex()[:8], rate_limit, slo) for digest in digests} | dict(tenants or {})
        self._anonymous = None if self._tenants else Tenant("", rate_limit, slo)

    @property
    def is_required(self) -> bool:
        """Whether nobody comes in without one."""
        return self._anonymous is None

    def authenticate(self, authorization: str) -> Tenant | None:
        """Who sent this header, or None if nobody that is known."""
        if self._anonymous is not None:
            return self._anonymous
        scheme, _, key = authorization.partition(" ")
        shown = hash_key(key.strip())
        found = None
        for digest, holder in self._tenants.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, shown):
                found = holder
        return found if scheme.lower() in ("bearer", "api-key") else None
