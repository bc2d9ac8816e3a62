"""Errors in the JSON format of the Anthropic API."""

from __future__ import annotations

from typing import Any

from mstar.server.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by status. Others are `invalid_request_error` below 500, and `api_error` from 500 on."""


def to_error_content(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error, also the data of the last event of a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
