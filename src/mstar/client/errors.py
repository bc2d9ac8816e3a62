"""What goes wrong between a client and its server, each kind as a class. When to try again is decided in `errand`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mstar.errors import MstarError

_FIXES = {
    400: "change what is asked for",
    401: "pass the server's key: Client(url, api_key=...)",
    404: "see what is served: Client.models()",
    429: "come again later, or raise the client's retry_timeout_s",
    500: "tell whoever runs the server the id of the request",
}


class ClientError(MstarError):
    """Anything that a client raises."""


class ApiError(ClientError):
    """The server does not do what it was asked for, and says why."""

    def __init__(self, status: int, error: Mapping[str, Any], request_id: str, retry_after: float | None) -> None:
        self.status = status
        self.code = str(error.get("code") or "")
        self.param: str | None = error.get("param")
        self.message = str(error.get("message") or "")
        self.request_id = request_id
        self.retry_after = retry_after
        """After how many seconds to come again, if the server says."""
        what = f"{status} {self.code}: {self.message} (request {request_id})"
        super().__init__(f"{what}\n  fix: {_FIXES[_status_class(status)]}")


class BadRequest(ApiError):
    """Something is wrong with what was asked for; `param` names it."""


class AuthenticationError(ApiError):
    """The key is wrong, or there is none."""


class NotFound(ApiError):
    """There is no such model, or it is not served in this way."""


class ServerBusy(ApiError):
    """The server has too much to do, or is starting or ending."""


class ServerError(ApiError):
    """The model or the server failed at this request."""


class ServerUnreachable(ClientError):
    """No answer came."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the server did not answer: {what}\n  fix: see that it runs, and that the address is right")


class ServerNotReady(ClientError):
    """The server was not ready in time."""

    def __init__(self, seconds: float, phase: str) -> None:
        super().__init__(f"the server is {phase} after {seconds:g} s\n  fix: wait longer, or see what it prints")


class StreamInterrupted(ClientError):
    """A stream ended before its end, and may not be asked for again."""

    def __init__(self, reason: str) -> None:
        fix = "give a seed or temperature 0, so that it can be asked for again, or say resume=True"
        super().__init__(f"the stream was cut: {reason}\n  fix: {fix}")


class StreamDiverged(ClientError):
    """A stream was asked for again, and is not what it was the first time."""

    def __init__(self, channel: str, delivered: int, received: int) -> None:
        what = f"the {channel} had {delivered} bytes before the cut, and the first {min(delivered, received)} are others now"
        super().__init__(f"{what}\n  fix: drop what came before, and ask anew")


def to_api_error(status: int, content: Any, request_id: str, headers: Mapping[str, str]) -> ApiError:
    """What the server said instead of an answer."""
    told: Any = cast("dict[str, Any]", content).get("error") if isinstance(content, dict) else None
    error = cast("dict[str, Any]", told) if isinstance(told, dict) else {"message": str(cast("Any", content))[:200]}
    return _CLASSES[_status_class(status)](status, error, request_id, _retry_after(headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """After how many seconds to come again, if that is told. A date is not read: this server writes none."""
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
