"""API keys: authentication, and a role, a rate limit (token bucket and concurrency limit) and a default SLO each.

Keys are stored as SHA-256 digests and compared in constant time. `browser_auth` reads a key from a request, and the
middleware in `app` sends the errors. A key is a client key or an operator key: operator keys can also load and unload
models and see the requests of all tenants.

Rate limit of one tenant, checked for every request and WebSocket. POST requests and WebSockets share one bucket
(`Tenant.work`); all others, GET and DELETE for example, have one with the same limits (`Tenant.reads`). So a tenant
that has used up its requests can still look at them, and an endless loop of reads is limited too:

1. Concurrency: at most `max_concurrent` requests in progress, else retry after 1 s.
2. Token bucket: it holds at most `max_concurrent` tokens and gains `requests_per_second` tokens a second. A request
   takes one token; with none left, retry after `(1 - tokens) / requests_per_second`.

Example: 20 requests/s and 5 concurrent allow a burst of 5 at once, then one request every 50 ms.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

import msgspec

from mstar.config import RateLimit
from mstar.wire.slo import Slo

__all__ = ["ApiKeys", "KeyRecord", "RateLimit", "Tenant", "hash_key"]

NAME_DIGITS = 32
"""Hex digits of the digest that name a key without a configured tenant. Two keys with the same name would share all
data, so the digits must be too many for a collision."""


def hash_key(key: str) -> bytes:
    """The SHA-256 digest that is stored for a key."""
    return hashlib.sha256(key.encode()).digest()


class RequestBucket:
    """Token bucket and concurrency limit of one kind of requests."""

    def __init__(self, rate_limit: RateLimit) -> None:
        self.active_requests = 0
        self.rate_limit = rate_limit
        self._tokens = float(rate_limit.max_concurrent)
        self._refilled_at = float("-inf")

    def acquire(self, now: float) -> float:
        """Take a token and return 0, or return the seconds to wait before the next try."""
        limit = self.rate_limit
        if self.active_requests >= limit.max_concurrent:
            return 1.0
        rate = limit.requests_per_second
        self._tokens = min(float(limit.max_concurrent), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class Tenant:
    """The owner of one API key: its name in logs, its role, its SLO, and its token buckets."""

    def __init__(self, name: str, rate_limit: RateLimit, slo: Slo | None = None, *, is_operator: bool = False) -> None:
        self.name = name
        """Name from the configuration, or the first NAME_DIGITS hex digits of the key's digest."""
        self.slo = slo or Slo()
        """SLO of requests that set none."""
        self.rate_limit = rate_limit
        self.is_operator = is_operator
        self.is_withdrawn = False
        """Whether its key was removed while the server runs. The anonymous tenant is withdrawn by the first key."""
        self.work = RequestBucket(rate_limit)
        """POST requests and WebSockets."""
        self.reads = RequestBucket(rate_limit)
        """All other requests."""

    def adopt(self, configured: Tenant) -> None:
        """Take over the settings of the same tenant after a reload; requests in progress and tokens stay counted."""
        self.slo, self.rate_limit, self.is_operator = configured.slo, configured.rate_limit, configured.is_operator
        self.work.rate_limit = self.reads.rate_limit = configured.rate_limit


class KeyRecord(msgspec.Struct, frozen=True):
    """An API key as the launcher sends it to a front end that is a process of its own."""

    digest: bytes
    """SHA-256 digest of the key; empty for the anonymous tenant of a server without keys."""
    name: str
    rate_limit: RateLimit
    slo: Slo
    is_operator: bool


class ApiKeys:
    """The API keys of a server. Without any key, every request belongs to one anonymous tenant, an operator."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        rate_limit: RateLimit | None = None,
        tenants: Mapping[bytes, Tenant] | None = None,
        slo: Slo | None = None,
        operator_keys: Iterable[str] = (),
    ) -> None:
        """`keys` are plain keys of clients; `tenants` are configured tenants by the digest of their key."""
        rate_limit = rate_limit or RateLimit()
        roles = dict.fromkeys(map(hash_key, keys), False) | dict.fromkeys(map(hash_key, operator_keys), True)
        unnamed = {
            digest: Tenant(digest.hex()[:NAME_DIGITS], rate_limit, slo, is_operator=is_operator)
            for digest, is_operator in roles.items()
        }
        self._tenants = unnamed | dict(tenants or {})
        self._anonymous = None if self._tenants else Tenant("", rate_limit, slo, is_operator=True)

    def replace(self, configured: ApiKeys) -> tuple[int, int]:
        """Take over the keys of a reloaded configuration. Returns how many keys were added and withdrawn."""
        previous, self._tenants = self._tenants, dict(configured._tenants)
        anonymous, self._anonymous = self._anonymous, configured._anonymous
        if anonymous is not None and configured._anonymous is not None:
            anonymous.adopt(configured._anonymous)
            self._anonymous = anonymous
        elif anonymous is not None:
            anonymous.is_withdrawn = True
        for digest, tenant in configured._tenants.items():
            if (known := previous.get(digest)) is not None and known.name == tenant.name:
                known.adopt(tenant)
                self._tenants[digest] = known
        withdrawn = [tenant for digest, tenant in previous.items() if self._tenants.get(digest) is not tenant]
        for tenant in withdrawn:
            tenant.is_withdrawn = True
        return len(self._tenants.keys() - previous.keys()), len(previous.keys() - self._tenants.keys())

    @classmethod
    def from_records(cls, records: Iterable[KeyRecord]) -> ApiKeys:
        """The keys of another process."""
        tenants = {
            one.digest: Tenant(one.name, one.rate_limit, one.slo, is_operator=one.is_operator) for one in records
        }
        if (anonymous := tenants.pop(b"", None)) is not None:
            return cls(rate_limit=anonymous.rate_limit, slo=anonymous.slo)
        return cls(tenants=tenants)

    def records(self) -> list[KeyRecord]:
        """The keys for another process, without their counters."""
        tenants = self._tenants if self._anonymous is None else {b"": self._anonymous}
        return [
            KeyRecord(digest, tenant.name, tenant.rate_limit, tenant.slo, tenant.is_operator)
            for digest, tenant in tenants.items()
        ]

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
