"""Strict HTTP/1.1 parsing: h11 without the leniencies that a proxy in front can read differently (request smuggling).

A request is malformed if a line of its header or trailer ends with a bare LF, if a header continues on the next line
(obs-fold), or if it has both Content-Length and Transfer-Encoding. RFC 9112 allows a server to reject all three.
uvicorn answers a malformed request with status 400 and closes the connection.
"""

from __future__ import annotations

import re
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer

_HEADER_END = re.compile(rb"\n\r?\n")
_FRAMING_HEADERS = {b"content-length", b"transfer-encoding"}


class StrictConnection(h11.Connection):
    """Server side of a connection. `next_event` raises RemoteProtocolError for a malformed request."""

    def __init__(self, max_header_bytes: int | None) -> None:
        assert max_header_bytes is not None, "HttpServer sets a limit"
        super().__init__(h11.SERVER, max_header_bytes)
        self._receive_buffer = _StrictReceiveBuffer()

    def next_event(self) -> Any:
        """The next parsed event."""
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _FRAMING_HEADERS:
            self._process_error(self.their_role)
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return event


class _StrictReceiveBuffer(ReceiveBuffer):
    """Receive buffer whose header lines must end with CRLF and must not start with white space."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines up to the first empty line, or None if it has not arrived."""
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        match = _HEADER_END.search(self._data, self._multiple_lines_search)
        if match is None and not self._data.startswith(b"\n"):
            self._multiple_lines_search = max(0, len(self._data) - 2)
            return None
        block = self._extract(match.end() if match else 1)
        if block.count(b"\n") != block.count(b"\r\n"):
            raise h11.LocalProtocolError("a line ends with a bare LF")
        if b"\r\n " in block or b"\r\n\t" in block:
            raise h11.LocalProtocolError("a header continues on the next line")
        return block[: -len(b"\r\n\r\n")].split(b"\r\n")
