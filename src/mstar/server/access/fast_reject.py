"""Answers to requests that come while the door is shut, and are there whole: refused before anything is made of them.

What a request takes until it can be refused (its parsing, a task, the application) is a multiple of what the refusal
takes, and in a flood it is missing to those who are served. So what is plainly a request that would be refused is
answered from its bytes. Whatever is not plain goes the usual way, and is looked at with care there: nobody is let in
here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import formatdate

from mstar.server.access.slo import SLO_HEADER
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.errors import ApiError
from mstar.server.http_exchange import RequestContext, request_id_from
from mstar.server.state import Endpoint, ServerState

MAX_HEADER_BYTES = 8 << 10
"""Larger heads are not plain: reading them would take long."""
_UNSUPPORTED_HEADERS = frozenset({"transfer-encoding", "expect", "upgrade"})


@dataclass(frozen=True, slots=True)
class RejectResponse:
    """What to send, and whether that is the last."""

    data: bytes
    close_connection: bool


class FastReject:
    """Reads what a client has sent, and says what to answer if no more is needed for that."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        asking = [one for one in state.endpoints if one.method == "POST" and one.request_type is not None]
        self._endpoints = {f"POST {one.path} HTTP/1.1": one for one in asking}

    def try_reject(self, data: bytes) -> RejectResponse | None:
        """What to answer to all that a connection has brought since its last answer; None for the usual way."""
        if not self._state.circuit_breaker.is_open or self._state.phase.name != "ready":
            return None
        end = data.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
        line, *lines = data[: max(end, 0)].decode("latin-1").split("\r\n")
        body = data[end + 4 :]
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        surface = self._endpoints.get(line)
        is_plain = len(headers) == len(lines) and not headers.keys() & _UNSUPPORTED_HEADERS
        if surface is None or not is_plain or headers.get("content-length") != str(len(body)):
            return None
        if surface.best_effort_marker and surface.best_effort_marker in body:
            return None
        passage = RequestContext(request_id_from(headers.get("x-request-id", "")))
        refusal = self._rejection(passage, surface, headers)
        return None if refusal is None else self._build_response(passage, refusal, headers, len(body))

    def _rejection(self, context: RequestContext, endpoint: Endpoint, headers: dict[str, str]) -> ApiError | None:
        """What a request is told, if the door is shut to it."""
        context.tenant = holder = self._state.keys.authenticate(headers.get("authorization", ""))
        if holder is None:
            return None
        try:
            context.enter_endpoint(endpoint, headers.get(SLO_HEADER.lower(), ""))
        except ApiError:
            return None
        refusal = self._state.early_rejection(endpoint, context)
        # It costs what any other costs, and who has no more left is told that.
        return None if refusal is None or holder.acquire(time.monotonic()) else refusal

    def _build_response(
        self, context: RequestContext, error: ApiError, headers: dict[str, str], size: int
    ) -> RejectResponse:
        entry = RequestRecord(context, headers.get("traceparent", ""))
        context.record_error(error)
        is_last = "close" in headers.get("connection", "").lower()
        more = {"Date": formatdate(usegmt=True), "X-Request-Id": context.id}
        self._state.record_request_end(entry, size, len(error.body))
        return RejectResponse(error.http_response(more | {"Connection": "close"} if is_last else more), is_last)
