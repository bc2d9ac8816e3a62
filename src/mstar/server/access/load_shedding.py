"""Load shedding: a limit for the requests that a front end works on, checked before a request is parsed.

The conductor limits the requests that run and wait. A flood can exceed what the front end itself can parse and submit,
and then requests would wait in its event loop, where no limit applies: all of them are late, rejections too. So the
front end has at most `limit` POST requests that begin work, those that wait to be parsed included. A request beyond it
gets a prepared 429 and the connection is closed, for a small part of the cost of a served request.

`limit` is what the conductors could accept (running and queued requests), and a request counts until it has ended in
the runtime, not until its client has read the response. So a burst that they would serve is not rejected here. Tenants
share the limit as they share running requests (`mstar.tenant_share`).

A request that is not complete in the first bytes of its connection is rejected by the middleware, before its body is
read.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mstar.server.endpoint import Endpoint
from mstar.server.errors import ApiError
from mstar.tenant_share import TENANT_SHARE_FACTOR, has_share_left

RETRY_AFTER_S = 1.0
"""Retry-After, in seconds, of a rejected request."""
MAX_HEADER_BYTES = 8 << 10
"""Maximum size of the headers of a request that is rejected here."""
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)
_AUTHORIZATION = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]*)", re.IGNORECASE)
_X_API_KEY = re.compile(rb"\r\nx-api-key:[ \t]*([^\r\n]*)", re.IGNORECASE)


def overloaded_error() -> ApiError:
    """The error for a request beyond the limit."""
    message = f"the server has as many requests as it can accept; fix: retry after {RETRY_AFTER_S:g} s"
    return ApiError(429, "overloaded", message, retry_after=RETRY_AFTER_S)


def is_limited(endpoint: Endpoint) -> bool:
    """Whether requests to an endpoint count: those that begin work, not those that cancel or unload something."""
    return endpoint.method == "POST" and "{" not in endpoint.path


class RawRequest(NamedTuple):
    """A POST request, as far as it is read before it is parsed."""

    endpoint: Endpoint
    authorization: str
    is_complete: bool
    """Whether its whole body has arrived, and nothing else."""


class RequestMatcher:
    """Recognizes POST requests in the first bytes of a connection."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = {
            f"POST {endpoint.path} HTTP/1.1".encode(): endpoint for endpoint in endpoints if is_limited(endpoint)
        }

    def match(self, data: bytes) -> RawRequest | None:
        """The request at the start of `data`; None if it is another one, or if its headers are not complete."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
        endpoint = self._endpoints.get(data[: data.find(b"\r\n")])
        if endpoint is None or end < 0:
            return None
        length = _CONTENT_LENGTH.search(data, 0, end + 2)
        is_complete = length is not None and int(length[1]) == len(data) - end - 4
        return RawRequest(endpoint, _authorization(data, end + 2), is_complete)


def _authorization(data: bytes, end: int) -> str:
    """What `authorization_from` returns for the parsed headers."""
    if authorization := _AUTHORIZATION.search(data, 0, end):
        return authorization[1].decode("latin-1")
    key = _X_API_KEY.search(data, 0, end)
    return f"Bearer {key[1].decode('latin-1')}" if key else ""


class LoadShedder:
    """Counts the POST requests of a front end, by tenant."""

    def __init__(self) -> None:
        self.limit = sys.maxsize
        """Maximum number of requests in progress or waiting to be parsed."""
        self._used: Counter[str] = Counter()
        self._total = 0

    @property
    def is_crowded(self) -> bool:
        """Whether any tenant can be without a free slot. Cheap: it is checked for every request."""
        return self._total * (TENANT_SHARE_FACTOR + 1) >= self.limit * TENANT_SHARE_FACTOR

    def has_slot(self, tenant: str) -> bool:
        """Whether a tenant can have another request."""
        return has_share_left(tenant, self._used[tenant], self.limit - self._total)

    def take(self, tenant: str) -> Slot:
        """Count a request until its slot is released."""
        self._used[tenant] += 1
        self._total += 1
        return Slot(self, tenant)

    def release(self, tenant: str) -> None:
        """Stop counting a request of a tenant. Its slot calls this."""
        self._total -= 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]


class Slot:
    """The place of one request in the limit."""

    __slots__ = ("_load_shedder", "_tenant")

    def __init__(self, load_shedder: LoadShedder, tenant: str) -> None:
        self._load_shedder: LoadShedder | None = load_shedder
        self._tenant = tenant

    def release(self) -> None:
        """Stop counting the request. A second call has no effect."""
        if self._load_shedder is not None:
            self._load_shedder.release(self._tenant)
            self._load_shedder = None
