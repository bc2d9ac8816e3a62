"""HTTP/1.1 client of the load generator: one request per connection, with the arrival time of every chunk.

It does little work per byte, because its CPU time distorts the measurement. It never retries.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from mstar.cli.bench.records import RequestRecord, parse_retry_after
from mstar.cli.bench.request_kinds import RequestBody, RequestKind
from mstar.cli.bench.response_readers import ResponseError, ResponseReader, error_message
from mstar.client.stream_parsing import decode_json
from mstar.errors import LoadError

REQUEST_TIMEOUT_S = 300.0
"""Seconds to wait for a complete response."""
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Resolved address of a server."""

    url: str
    host: str
    address: str
    port: int
    prefix: str
    """Path prefix of the server. Empty: it is at the root."""
    key: str
    tls: ssl.SSLContext | None

    def headers(self, server_slo: str) -> dict[str, str]:
        """Headers of every request."""
        return ({"Authorization": f"Bearer {self.key}"} if self.key else {}) | (
            {"Mstar-SLO": server_slo} if server_slo else {}
        )


async def resolve_server(url: str, key: str) -> ServerAddress:
    """Resolve the host once, and choose the first address that accepts a connection. Raises LoadError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadError(f"{url!r} is not an HTTP URL\n  fix: use the form http://host:port")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    loop, reason = asyncio.get_running_loop(), ""
    try:
        addresses = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        addresses, reason = [], str(error)
    for *_, (address, *_) in addresses:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await loop.create_connection(asyncio.Protocol, str(address), port)
            transport.close()
            url = f"{parts.scheme}://{parts.netloc}"
            return ServerAddress(
                url, parts.hostname, str(address), port, parts.path.rstrip("/").removesuffix("/v1"), key, tls
            )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
    fix = "check the URL and that the server runs; `mstar serve MODEL` starts one"
    raise LoadError(f"no server at {url}: {reason}\n  fix: {fix}")


class HttpClientProtocol(asyncio.Protocol):
    """Sends one request and records the response. `ended` is done when it is over."""

    def __init__(
        self, request: bytes, http: h11.Connection, record: RequestRecord, kind: RequestKind, started_at: float
    ) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._http = http
        self._record = record
        self._kind = kind
        self._started_at = started_at
        self._reader: ResponseReader | None = None
        self._is_chunked = False
        self._buffered: list[bytes] = []
        """Data of an incomplete chunk, or of an error response."""

    def connection_made(self, transport: Any) -> None:
        """Send the request."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Parse the data and record chunks."""
        self._on_events(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record a truncated response."""
        if not self.ended.done():
            self._on_events(b"")
        if not self.ended.done():
            self._end(f"truncated: {exc or 'the connection was closed before the end'}")

    def _on_events(self, data: bytes) -> None:
        now = time.perf_counter() - self._started_at
        try:
            self._http.receive_data(data)
            while not self.ended.done():
                match self._http.next_event():
                    case h11.Response() as head:
                        self._on_response(head)
                    case h11.Data() as data_event:
                        ends_chunk = data_event.chunk_end or not self._is_chunked
                        self._on_data(now, bytes(data_event.data), ends_chunk=ends_chunk)
                    case h11.EndOfMessage():
                        self._finish(now)
                    case h11.InformationalResponse():
                        pass
                    case _:
                        break
        except ResponseError as error:
            self._end(str(error))
        except h11.RemoteProtocolError as error:
            self._end(f"truncated: {error}")

    def _on_response(self, head: h11.Response) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._record.status = head.status_code
        self._is_chunked = "transfer-encoding" in headers
        if head.status_code == 200:
            self._reader = self._kind.reader(headers)
        else:
            self._record.retry_after = parse_retry_after(headers)

    def _on_data(self, now: float, data: bytes, *, ends_chunk: bool) -> None:
        """A chunk counts as received when its last byte arrives, in however many packets."""
        self._buffered.append(data)
        if ends_chunk and self._reader is not None:
            chunk, self._buffered = b"".join(self._buffered), []
            self._add_chunk(now, self._reader.feed(chunk))

    def _add_chunk(self, now: float, amount: float) -> None:
        if amount:
            self._record.chunks.append((now, amount))

    def _finish(self, now: float) -> None:
        if self._reader is None:
            raise ResponseError(f"{self._record.status} {error_message(decode_json(b''.join(self._buffered)))}")
        self._add_chunk(now, self._reader.finish())
        self._record.tokens = self._reader.tokens
        self._end("" if self._record.chunks else "the response is empty")

    def _end(self, error: str) -> None:
        self._record.error = error
        self._record.ended_at = time.perf_counter() - self._started_at
        self.ended.set_result(None)
        self._transport.close()


async def send_request(
    server: ServerAddress,
    kind: RequestKind,
    request_body: RequestBody,
    headers: Mapping[str, str],
    record: RequestRecord,
    started_at: float,
) -> RequestRecord:
    """Send one request and wait for its end. Errors go to the record."""
    record.audio_input_s = request_body.audio_input_s
    http = h11.Connection(h11.CLIENT)
    defaults = {"Host": server.url.partition("//")[2], "Content-Type": request_body.content_type, "Connection": "close"}
    head = [*(defaults | dict(headers)).items(), ("Content-Length", str(len(request_body.body)))]
    request = http.send(h11.Request(method="POST", target=server.prefix + kind.path, headers=head)) or b""
    request += (http.send(h11.Data(request_body.body)) or b"") + (http.send(h11.EndOfMessage()) or b"")
    name = server.host if server.tls else None
    connect = asyncio.get_running_loop().create_connection
    record.sent_at = time.perf_counter() - started_at
    transport = None
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            transport, protocol = await connect(
                lambda: HttpClientProtocol(request, http, record, kind, started_at),
                server.address,
                server.port,
                ssl=server.tls,
                server_hostname=name,
            )
            await protocol.ended
    except (OSError, TimeoutError) as error:
        record.error = (
            f"timeout after {REQUEST_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else f"connection lost: {error}"
        )
        record.ended_at = time.perf_counter() - started_at
    finally:
        if transport is not None:
            transport.close()
    return record
