"""Exceptions of the client. `retry` decides which of them are retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mstar.errors import MstarError

_FIXES = {
    400: "change the request",
    401: "pass a valid API key: Client(url, api_key=...)",
    404: "list the served models: Client.models()",
    429: "retry later, or raise retry_timeout_s of the client",
    500: "report the request id to the operator of the server",
}


class ClientError(MstarError):
    """Base class of all exceptions of the client."""


class ApiError(ClientError):
    """The server rejected the request, or failed."""

    def __init__(self, status: int, error: Mapping[str, Any], request_id: str, retry_after: float | None) -> None:
        self.status = status
        self.code = str(error.get("code") or "")
        self.param: str | None = error.get("param")
        self.message = str(error.get("message") or "")
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds to wait before a retry (Retry-After), None if the server sent none."""
        summary = f"{status} {self.code}: {self.message} (request {request_id})"
        super().__init__(f"{summary}\n  fix: {_FIXES[_status_class(status)]}")


class BadRequest(ApiError):
    """A request parameter is invalid; `param` names it."""


class AuthenticationError(ApiError):
    """The API key is missing or invalid."""


class NotFound(ApiError):
    """The model does not exist, or is not served at this endpoint."""


class ServerBusy(ApiError):
    """The server is overloaded, starting or draining. Retried with backoff."""


class ServerError(ApiError):
    """The model or the server failed on this request."""


class ServerUnreachable(ClientError):
    """The server did not respond."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server did not respond: {reason}\n  fix: check that it runs, and check the URL")


class ServerNotReady(ClientError):
    """The server was not ready in time."""

    def __init__(self, seconds: float, phase: str) -> None:
        super().__init__(f"the server is {phase} after {seconds:g} s\n  fix: raise timeout_s, or read the server log")


class StreamInterrupted(ClientError):
    """A stream was interrupted, and cannot be resumed because a retry can produce other data."""

    def __init__(self, reason: str) -> None:
        fix = "set a seed or temperature 0, so that the stream can be resumed, or pass resume=True"
        super().__init__(f"the stream was interrupted: {reason}\n  fix: {fix}")


class StreamDiverged(ClientError):
    """A resumed stream differs from what was already delivered."""

    def __init__(self, channel: str, delivered: int, received: int) -> None:
        summary = (
            f"the resumed {channel} differs: {delivered} bytes were delivered before the interruption, "
            f"and the first {min(delivered, received)} bytes have changed"
        )
        super().__init__(f"{summary}\n  fix: discard what was delivered, and send a new request")


class SessionEnded(ClientError):
    """The server has ended a realtime session."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the session has ended: {reason}\n  fix: open a new one, and send the conversation items again"
        )


def to_api_error(status: int, content: Any, request_id: str, headers: Mapping[str, str]) -> ApiError:
    """The exception for an error response."""
    body: Any = cast("dict[str, Any]", content).get("error") if isinstance(content, dict) else None
    error = cast("dict[str, Any]", body) if isinstance(body, dict) else {"message": str(cast("Any", content))[:200]}
    return _CLASSES[_status_class(status)](status, error, request_id, _retry_after(headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of the Retry-After header, if any. Dates are not parsed: this server sends none."""
    for name, scale in (("retry-after-ms", 1000), ("retry-after", 1)):
        if headers.get(name, "").isdigit():
            return int(headers[name]) / scale
    return None


def _status_class(status: int) -> int:
    if status in (401, 403):
        return 401
    if status in (429, 503):
        return 429
    return 404 if status == 404 else 400 if status < 500 else 500


_CLASSES = {400: BadRequest, 401: AuthenticationError, 404: NotFound, 429: ServerBusy, 500: ServerError}
