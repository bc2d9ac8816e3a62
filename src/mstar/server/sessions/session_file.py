"""Session file: one conversation as JSON, with the model that it needs and a checksum.

Its checksum detects files that were cut off or damaged on their way. It does not authenticate them: what a file can
contain, its owner can send to the API anyway, and it is validated in the same way.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, cast

import msgspec

from mstar.server.errors import ApiError
from mstar.server.http_exchange import check_value_count

FORMAT = "mstar-session"
FORMAT_VERSION = 1
MAX_SESSION_BYTES = 64 << 20
"""Maximum size of a file. A minute of the user's speech has 4 MB."""
_CHECKSUM = "checksum"


class ModelIdentity(msgspec.Struct, frozen=True):
    """The model of a session."""

    name: str
    version: str
    """Hash of its walks and weights; see `model_identity`."""


class SessionFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a file, without its checksum."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    kind: Literal["realtime", "response"]
    model: ModelIdentity
    server_version: str
    created_at: int
    """Unix time of the export."""
    session: dict[str, Any]
    """The conversation; its fields depend on the kind."""


def encode_session(file: SessionFile) -> bytes:
    """The file as JSON. Raises ApiError if it is too large."""
    content: dict[str, Any] = msgspec.to_builtins(file)
    encoded = msgspec.json.encode(content | {_CHECKSUM: _compute_checksum(content)})
    if len(encoded) > MAX_SESSION_BYTES:
        message = f"the session has {len(encoded)} bytes, a file has at most {MAX_SESSION_BYTES}. fix: delete items"
        raise ApiError(413, "too_large", message)
    return encoded


def decode_session(encoded: bytes) -> SessionFile:
    """Parse a file and check that it is complete. Raises ApiError."""
    check_value_count(encoded)
    try:
        parsed = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise _invalid("it is not JSON, or is cut off") from None
    content = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    if content.get("format") != FORMAT:
        raise _invalid(f"its format is not {FORMAT!r}")
    if content.get("format_version") != FORMAT_VERSION:
        message = f"the server reads version {FORMAT_VERSION} of the format. fix: import it into the release it is from"
        raise ApiError(400, "invalid_session_file", f"format_version: {message}", param="format_version")
    if content.pop(_CHECKSUM, None) != _compute_checksum(content):
        raise _invalid("its checksum does not match, so it was altered or damaged")
    try:
        return msgspec.convert(content, SessionFile)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _compute_checksum(content: dict[str, Any]) -> str:
    """Checksum of the content, however its JSON is formatted."""
    return f"sha256:{hashlib.sha256(msgspec.json.encode(content, order='sorted')).hexdigest()}"


def _invalid(reason: str) -> ApiError:
    return ApiError(400, "invalid_session_file", f"the session file is not valid: {reason}. fix: export it again")
