"""How far the outputs of a response were forwarded: another server can generate it again and continue after them.

Outputs of one kind have an order; kinds are interleaved by chance. So each kind has its count, with a digest of all
outputs before: a second generation that differs is found at the last output that was forwarded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from mstar.server.errors import ApiError

Mark = tuple[int, bytes]
"""Number of outputs, and their digest."""
_DIGEST_BYTES = 16


class OutputPosition:
    """Position in the outputs of one response."""

    def __init__(self, forwarded: Mapping[str, Mark] | None = None) -> None:
        """`forwarded` has the marks of outputs that the client has from another server."""
        self._forwarded = dict(forwarded or {})
        self._generated: dict[str, Mark] = {}

    @property
    def marks(self) -> dict[str, Mark]:
        """The last forwarded output of each kind."""
        kinds = self._forwarded.keys() | self._generated.keys()
        none = (0, b"")
        return {kind: max(self._forwarded.get(kind, none), self._generated.get(kind, none)) for kind in kinds}

    def advance(self, kind: str, content: bytes) -> bool:
        """Note the next output of a kind. Returns whether it must be forwarded. Raises ApiError if it differs."""
        count, digest = self._generated.get(kind, (0, b""))
        mark = count + 1, hashlib.blake2b(digest + content, digest_size=_DIGEST_BYTES).digest()
        self._generated[kind] = mark
        forwarded = self._forwarded.get(kind, (0, b""))
        if mark[0] == forwarded[0] and mark != forwarded:
            raise _diverged()
        return mark[0] > forwarded[0]

    def check_complete(self) -> None:
        """The response has no more outputs. Raises ApiError if it had more at the other server."""
        if any(self._generated.get(kind, (0, b""))[0] < count for kind, (count, _) in self._forwarded.items()):
            raise _diverged()


def _diverged() -> ApiError:
    message = "the server of this response was lost, and another one generated different output; fix: create it again"
    return ApiError(500, "diverged", message)
