"""Strict HTTP/1.1 on a connection: uvicorn's protocol on llhttp, without what a proxy in front can read differently.

llhttp rejects most ambiguous requests (request smuggling): lines that end with a bare LF, headers that continue on the
next line (obs-fold), two lengths, or a length and a transfer encoding. This adds what it leaves to its caller: the size
of headers and trailers, the Host header, transfer encodings other than chunked, and upgrades other than to WebSockets,
which are ignored. A malformed request gets status 400, and the connection is closed.
"""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 64 << 10
"""Maximum size of a request line with headers, and of the trailers of a body."""
MAX_PIPELINED_REQUESTS = 64
"""Maximum number of requests on a connection that wait for an earlier response."""
_HTTP_VERSIONS = ("1.0", "1.1")
_UPGRADE_HEADERS = (b"connection", b"upgrade", b"http2-settings")


class MalformedRequest(Exception):
    """Ends parsing: llhttp accepts the request, this server does not."""


class StrictHttpProtocol(HttpToolsProtocol):
    """One HTTP connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._is_in_message = False
        """Whether a request has begun to arrive and is not complete."""
        self._has_headers = False
        """Whether its headers are complete: what follows are body and trailers."""
        self._header_bytes = 0
        """Bytes since the begin of the headers, or since the last byte of the body."""

    @property
    def is_serving(self) -> bool:
        """Whether the response to a request is not complete."""
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def is_idle(self) -> bool:
        """Whether no request is served and none has begun to arrive."""
        return not self._is_in_message and not self.is_serving

    # ---------------------------------------------------------------- parsing
    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.transport.is_closing():  # the parser has stopped at a malformed request
            return
        self._unset_keepalive_if_required()
        try:
            if data.startswith(b"\n") and not self._header_bytes and not self._is_in_message:
                raise httptools.HttpParserError("bare LF before a request")  # llhttp skips it
            self._header_bytes += len(data)
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        else:
            if self._is_in_message and self._header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The request headers are too large.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_message, self._has_headers = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers are dropped: the request was authorized without them."""
        if not self._has_headers:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start to serve a request."""
        self._check_headers()
        self._has_headers, self._header_bytes = True, 0
        if self.parser.should_upgrade():  # goes on in `data_received`
            self.scope["method"] = self.parser.get_method().decode("ascii")
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _UnchunkedResponse(self.cycle).send

    def _check_headers(self) -> None:
        version = self.parser.get_http_version()
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
                raise MalformedRequest("transfer encoding")
        if version not in _HTTP_VERSIONS or hosts > 1 or (not hosts and version == "1.1"):
            raise MalformedRequest("version or host")
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            raise MalformedRequest("too many pipelined requests")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._is_in_message, self._header_bytes = False, 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request again as one without upgrade, and what came behind its headers: llhttp has stopped there."""
        closes = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] not in _UPGRADE_HEADERS]
        lines += [b"connection: close"] if closes else []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    # ---------------------------------------------------------------- errors
    def send_400_response(self, msg: str) -> None:
        """Reject a malformed request. A response that has begun is cut off."""
        if self.pipeline or (self.is_serving and self.cycle.response_started):
            self.transport.close()
        else:
            self.logger.warning(msg)
            super().send_400_response(msg)


class _UnchunkedResponse:
    """Sends the response to an HTTP/1.0 request. Such clients know no chunks: the end of the connection ends a body."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._is_sized = False

    async def send(self, message: Any) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.start":
            self._is_sized = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._is_sized:
                self._cycle.chunked_encoding = False
        elif not self._is_sized:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
