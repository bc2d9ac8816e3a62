"""API keys: authentication, and a rate limit (token bucket and concurrency limit) and default SLO for each tenant.

Keys are stored as SHA-256 digests and compared in constant time. `browser_auth` reads a key from a request, and the
middleware in `app` sends the errors.

Rate limit of one tenant, checked in `Tenant.acquire` for every POST request and WebSocket:

1. Concurrency: at most `max_concurrent` requests in progress, else retry after 1 s.
2. Token bucket: it holds at most `max_concurrent` tokens and gains `requests_per_second` tokens a second. A request
   takes one token; with none left, retry after `(1 - tokens) / requests_per_second`.

Example: 20 requests/s and 5 concurrent allow a burst of 5 at once, then one request every 50 ms.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from mstar.config import RateLimit
from mstar.wire.slo import Slo

__all__ = ["ApiKeys", "RateLimit", "Tenant", "hash_key"]

NAME_DIGITS = 32
"""Hex digits of the digest that name a key without a configured tenant. Two keys with the same name would share all
data, so the digits must be too many for a collision."""


def hash_key(key: str) -> bytes:
    """The SHA-256 digest that is stored for a key."""
    return hashlib.sha256(key.encode()).digest()


class Tenant:
    """The owner of one API key: its name in logs, its SLO, and its token bucket."""

    def __init__(self, name: str, rate_limit: RateLimit, slo: Slo | None = None) -> None:
        self.name = name
        """Name from the configuration, or the first NAME_DIGITS hex digits of the key's digest."""
        self.slo = slo or Slo()
        """SLO of requests that set none."""
        self.rate_limit = rate_limit
        self.active_requests = 0
        self._tokens = float(rate_limit.max_concurrent)
        self._refilled_at = float("-inf")

    def acquire(self, now: float) -> float:
        """Take a token and return 0, or return the seconds to wait before the next try."""
        if self.active_requests >= self.rate_limit.max_concurrent:
            return 1.0
        rate = self.rate_limit.requests_per_second
        self._tokens = min(float(self.rate_limit.max_concurrent), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class ApiKeys:
    """The API keys of a server. Without any key, every request belongs to one anonymous tenant."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        rate_limit: RateLimit | None = None,
        tenants: Mapping[bytes, Tenant] | None = None,
        slo: Slo | None = None,
    ) -> None:
        """`keys` are plain keys; `tenants` are configured tenants by the digest of their key."""
        rate_limit = rate_limit or RateLimit()
        names = {digest: digest.hex()[:NAME_DIGITS] for digest in map(hash_key, keys)}
        unnamed = {digest: Tenant(name, rate_limit, slo) for digest, name in names.items()}
        self._tenants = unnamed | dict(tenants or {})
        self._anonymous = None if self._tenants else Tenant("", rate_limit, slo)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key."""
        return self._anonymous is None

    def authenticate(self, authorization: str) -> Tenant | None:
        """The tenant of an Authorization header, or None if the key is unknown."""
        if self._anonymous is not None:
            return self._anonymous
        scheme, _, key = authorization.partition(" ")
        key_digest = hash_key(key.strip())
        match = None
        for digest, tenant in self._tenants.items():  # always all of them: the duration must not leak a match
            if hmac.compare_digest(digest, key_digest):
                match = tenant
        return match if scheme.lower() in ("bearer", "api-key") else None
