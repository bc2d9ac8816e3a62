"""API errors: status, code and message of a failed request, in the JSON format of the OpenAI API.

An error names what is wrong and how to fix it. It exposes nothing internal: no path and no traceback. The text of a
model's exception is sent if it concerns the client's own parameters, or if the server exposes errors
(`--expose-errors`); otherwise the client gets the type of the exception. Logging happens elsewhere.
"""

from __future__ import annotations

import re
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
    "NeverFits": "context_length_exceeded",
    "Unsupported": "unsupported",
}
"""Codes of exceptions about the client's own parameters, by class name. The client gets their text."""
_STATUS_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "failed": (500, "model_error", "the model failed at this request"),
    "poison": (500, "poison_request", "this request crashed the workers that ran it; it is not retried"),
    "not_retryable": (
        500,
        "not_retryable",
        "a worker was lost, and this request is not idempotent; fix: check its effect before you send it again",
    ),
    "deadline": (504, "deadline_exceeded", "the request exceeded its time limit (request_timeout_s)"),
    "unavailable": (503, "unavailable", "no worker is available for this request"),
    "cancelled": (499, "cancelled", "the request was cancelled"),
}
"""HTTP status, code and message, by final status of a request."""
_FIX = re.compile("[;.] fix:")
_RETRIED_STATUSES = (408, 409, 429)
"""Statuses below 500 after which SDKs send a request again."""
MAX_EXPOSED_CHARS = 2000
"""Maximum length of an exception message that a client gets."""
_TRANSFER_RETRY_AFTER_S = 1.0
"""Retry-After, in seconds, of a request for which the shared memory had no room."""
_DEFAULT_RETRY_AFTER_S = 5.0
"""Retry-After, in seconds, of a 503 without a better estimate."""


class ApiError(Exception):
    """A request was rejected or failed."""

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
        """The JSON body, also sent as the last event of a stream."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"type": kind, "code": self.code, "message": self.message, "param": self.param}}

    def without_retry(self) -> ApiError:
        """This error in a form after which no client sends the request again on its own: tools were called for it."""
        if self.retry_after is None and self.status not in _RETRIED_STATUSES:
            return self
        _, code, _ = _STATUS_ERRORS["not_retryable"]
        fix = "fix: check the effects of the tools that were called before you send it again"
        return ApiError(500, code, f"{_FIX.split(self.message)[0]}; {fix}", param=self.param)

    @property
    def body(self) -> bytes:
        """The JSON body, encoded."""
        return msgspec.json.encode(self.content)

    def http_response(self, headers: Mapping[str, str]) -> bytes:
        """A complete HTTP/1.1 response, for errors that are sent without the ASGI application."""
        body = self.body
        entity = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in (entity | self.headers | dict(headers)).items()]
        phrase = HTTPStatus(self.status).phrase
        return "\r\n".join([f"HTTP/1.1 {self.status} {phrase}", *lines, "", ""]).encode() + body

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After, WWW-Authenticate or x-should-retry, whichever applies."""
        if self.retry_after is not None:
            wait_s = self.retry_after
            return {"Retry-After": str(ceil(wait_s)), "retry-after-ms": str(ceil(wait_s * 1000))}
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def is_client_error(end: m.RequestFinished) -> bool:
    """Whether a request failed because of its own parameters."""
    return end.error_type in _REQUEST_ERRORS


def request_error_code(error_type: str) -> str | None:
    """API error code of an exception about the client's own parameters, by class name; None for any other."""
    return _REQUEST_ERRORS.get(error_type)


def missing_extra_error(problem: str, param: str | None = None, alternative: str = "") -> ApiError:
    """The error for a request that needs an optional package; `problem` is the text of a MissingExtra.

    `alternative` is what the client can do instead.
    """
    what, _, command = problem.partition("\n  fix: ")
    fix = f"{command} on the server" + (f", or {alternative}" if alternative else "")
    return ApiError(501, "missing_extra", f"{f'{param}: ' if param else ''}{what}. fix: {fix}", param=param)


def model_error(error_type: str, error_message: str, request_id: str, *, expose: bool) -> ApiError:
    """The API error for an exception of a model; with its message if `expose`."""
    status, code, message = _STATUS_ERRORS["failed"]
    reason = error_type + (f": {error_message[:MAX_EXPOSED_CHARS]}" if expose and error_message else "")
    return ApiError(status, code, _with_reason(message, reason, request_id))


def _with_reason(message: str, reason: str, request_id: str) -> str:
    return message + (f": {reason}" if reason else "") + (f" (request id {request_id})" if request_id else "")


def api_error_from(
    end: m.RequestFinished | m.RequestRejected, request_id: str = "", *, expose: bool = False
) -> ApiError:
    """The API error for a request that was rejected or failed. `request_id` leads the operator to the log line.

    With `expose`, it has the message of the exception.
    """
    if isinstance(end, m.RequestRejected):
        code = {429: "overloaded", 503: "unavailable", 404: "model_not_found"}.get(end.status, "refused")
        return ApiError(end.status, code, end.reason, retry_after=end.retry_after_s or None)
    if (code := request_error_code(end.error_type)) is not None:
        return ApiError(400, code, end.error_message)
    if end.error_type == "MissingExtra":
        return missing_extra_error(end.error_message)
    if end.error_type == "NotImplementedError":
        return ApiError(400, "unsupported", "the model does not support this request")
    if end.error_type == "Unreadable":  # lasting reasons are rejected before a request is submitted
        message = "the request could not be transferred to the model now"
        return ApiError(503, "unavailable", message, retry_after=_TRANSFER_RETRY_AFTER_S)
    if end.status == "failed":
        return model_error(end.error_type, end.error_message, request_id, expose=expose)
    status, code, message = _STATUS_ERRORS[end.status]
    if status == 500:
        message = _with_reason(message, end.error_message[:MAX_EXPOSED_CHARS] if expose else "", request_id)
    return ApiError(status, code, message, retry_after=_DEFAULT_RETRY_AFTER_S if status == 503 else None)
