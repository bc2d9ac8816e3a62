"""Fast reject: load shedding from the raw bytes of a request, before any HTTP parsing.

A request is rejected while its circuit is open (`circuit_breaker`), or if its tenant has no slot (`load_shedding`).

Parsing, a task and the ASGI application cost a multiple of the rejection itself, and in a flood the served requests
lack that time. So a complete, simple POST request that the circuit breaker would reject gets its 429 from the bytes.
Every other request takes the normal path: this module only rejects, it never admits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import formatdate

from mstar.server.access.browser_auth import authorization_from
from mstar.server.access.load_shedding import overloaded_error
from mstar.server.access.slo import SLO_HEADER
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.endpoint import Endpoint
from mstar.server.errors import ApiError
from mstar.server.request_context import RequestContext, request_id_from
from mstar.server.state import ServerState

MAX_HEADER_BYTES = 8 << 10
"""Maximum size of the headers. Larger ones take the normal path: splitting them here would take too long."""
_UNSUPPORTED_HEADERS = frozenset({"transfer-encoding", "expect", "upgrade"})


@dataclass(frozen=True, slots=True)
class RejectResponse:
    """A complete HTTP response, and whether to close the connection after it."""

    data: bytes
    close_connection: bool


class FastReject:
    """Rejects requests from their raw bytes while a circuit is open or the front end has its limit of requests."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._endpoints = {
            f"POST {endpoint.path} HTTP/1.1": endpoint
            for endpoint in state.endpoints
            if endpoint.method == "POST" and endpoint.request_type is not None
        }

    def try_reject(self, data: bytes, *, has_slot: bool = False) -> RejectResponse | None:
        """The response to all bytes received since the last response; None to take the normal path.

        `has_slot` says that the request already counts in the limit of requests.
        """
        state = self._state
        if not (state.circuit_breaker.is_open or state.load_shedder.is_crowded) or state.phase.name != "ready":
            return None
        end = data.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
        request_line, *lines = data[: max(end, 0)].decode("latin-1").split("\r\n")
        body = data[end + 4 :]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        endpoint = self._endpoints.get(request_line)
        is_malformed = any("\n" in line or line[:1] in (" ", "\t") for line in (request_line, *lines))
        is_simple = not is_malformed and len(headers) == len(lines) and not headers.keys() & _UNSUPPORTED_HEADERS
        if endpoint is None or not is_simple or headers.get("content-length") != str(len(body)):
            return None
        if endpoint.best_effort_marker and endpoint.best_effort_marker in body:
            return None
        context = RequestContext(request_id_from(headers.get("x-request-id", "")))
        error = self._rejection(context, endpoint, headers, has_slot=has_slot)
        return None if error is None else self._build_response(context, error, headers, len(body))

    def _rejection(
        self, context: RequestContext, endpoint: Endpoint, headers: dict[str, str], *, has_slot: bool
    ) -> ApiError | None:
        """The error for an authenticated request whose circuit is open or whose tenant has no slot, else None."""
        context.tenant = tenant = self._state.keys.authenticate(authorization_from(headers, ()))
        if tenant is None:
            return None
        try:
            context.enter_endpoint(endpoint, headers.get(SLO_HEADER.lower(), ""))
        except ApiError:
            return None
        error = self._state.early_rejection(endpoint, context)
        if error is None and not has_slot and not self._state.load_shedder.has_slot(tenant.name):
            error = overloaded_error()
        # A rejected request takes a token like any other; without one, the normal path sends the rate limit error.
        return None if error is None or tenant.work.acquire(time.monotonic()) else error

    def _build_response(
        self, context: RequestContext, error: ApiError, headers: dict[str, str], body_bytes: int
    ) -> RejectResponse:
        record = RequestRecord(context, headers.get("traceparent", ""))
        context.record_error(error)
        closes = "close" in headers.get("connection", "").lower()
        extra = {"Date": formatdate(usegmt=True), "X-Request-Id": context.id}
        context.bytes_in, context.bytes_out = body_bytes, len(error.body)
        self._state.record_request_end(record)
        return RejectResponse(error.http_response(extra | {"Connection": "close"} if closes else extra), closes)
