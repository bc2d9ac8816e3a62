"""Refusals: what a client is told instead of an answer, in the one shape that clients of this API know.

A refusal says what is wrong and what may be done, and nothing of what is inside: no path, no traceback, no text that a
model raised unless it speaks of the client's own wish. Logging is done by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec

from mstar.wire import messages as m

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_REQUEST_ERRORS = {
    "BadSampling": "bad_sampling",
    "BadGrammar": "bad_grammar",
    "NeverFits": "too_long",
    "Unsupported": "unsupported",
}
"""Errors that speak of the client's own wish, by name, with their codes: their text is for the client."""
_STATUS_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "failed": (500, "model_error", "the model failed at this request"),
    "poison": (500, "poison_request", "this request ended the processes that served it, and is not tried again"),
    "not_retryable": (500, "not_retryable", "a worker was lost, and what this request does must not be done twice"),
    "deadline": (504, "deadline_exceeded", "the request took longer than it may"),
    "unavailable": (503, "unavailable", "no worker is there for this request"),
    "cancelled": (499, "cancelled", "the request was cancelled"),
}
"""By how a request ended: a status as in HTTP, a code, and what to say."""
_DEFAULT_RETRY_AFTER_S = 5.0
"""After how many seconds to come again when nobody knows better."""


class ApiError(Exception):
    """A request is refused, or did not come to its end."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @property
    def content(self) -> dict[str, Any]:
        """The body, or the event in a stream."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"type": kind, "code": self.code, "message": self.message, "param": self.param}}

    @property
    def body(self) -> bytes:
        """The same as bytes."""
        return msgspec.json.encode(self.content)

    def http_response(self, headers: Mapping[str, str]) -> bytes:
        """A whole answer in HTTP, with further headers, for who was not heard."""
        body = self.body
        sizes = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in (sizes | self.headers | dict(headers)).items()]
        phrase = HTTPStatus(self.status).phrase
        return "\r\n".join([f"HTTP/1.1 {self.status} {phrase}", *lines, "", ""]).encode() + body

    @property
    def headers(self) -> dict[str, str]:
        """When to come again, or not at all."""
        if self.retry_after is not None:
            wait = self.retry_after
            return {"Retry-After": str(ceil(wait)), "retry-after-ms": str(ceil(wait * 1000))}
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def api_error_from(end: m.RequestFinished | m.RequestRejected) -> ApiError:
    """What to say of a request that did not end well."""
    if isinstance(end, m.RequestRejected):
        code = {429: "overloaded", 503: "unavailable", 404: "model_not_found"}.get(end.status, "refused")
        return ApiError(end.status, code, end.reason, retry_after=end.retry_after_s or None)
    if end.error_type in _REQUEST_ERRORS:
        return ApiError(400, _REQUEST_ERRORS[end.error_type], end.error_message)
    if end.error_type == "NotImplementedError":
        return ApiError(400, "unsupported", "the model does not do what was asked for")
    status, code, message = _STATUS_ERRORS[end.status]
    return ApiError(status, code, message, retry_after=_DEFAULT_RETRY_AFTER_S if status == 503 else None)
