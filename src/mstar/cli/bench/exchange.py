"""One request over HTTP and its answer, on a connection of its own, noted as the bytes come.

It is made to cost little, since what it computes is in the way of what is measured. It asks once and never again.
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

from mstar.cli.bench.kinds import Asked, Kind
from mstar.cli.bench.readers import Failed, Reader, problem_of
from mstar.cli.bench.records import Record, retry_after
from mstar.client.frames import decoded
from mstar.errors import LoadError

LONGEST_S = 300.0
"""How long an answer may take."""
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Site:
    """Where a server is, once its address has been found."""

    url: str
    host: str
    address: str
    port: int
    prefix: str
    """What comes before every path, if the server is not at the root."""
    key: str
    tls: ssl.SSLContext | None

    def headers(self, pace: str) -> dict[str, str]:
        """What every request says."""
        return ({"Authorization": f"Bearer {self.key}"} if self.key else {}) | ({"Mstar-Pace": pace} if pace else {})


async def find_site(url: str, key: str) -> Site:
    """The first address of a server at which somebody answers: it is not looked up again for each request."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadError(f"{url!r} is no address\n  fix: write it as http://host:port")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    loop, why = asyncio.get_running_loop(), ""
    try:
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        found, why = [], str(error)
    for *_, (address, *_) in found:
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(asyncio.Protocol, str(address), port)
            transport.close()
            url = f"{parts.scheme}://{parts.netloc}"
            return Site(url, parts.hostname, str(address), port, parts.path.rstrip("/").removesuffix("/v1"), key, tls)
        except (OSError, TimeoutError) as error:
            why = str(error) or "nobody answers"
    fix = "see that the server runs, and that the address is right; `mstar serve MODEL` starts one of ours"
    raise LoadError(f"no server is at {url}: {why}\n  fix: {fix}")


class Exchange(asyncio.Protocol):
    """Sends one request and writes into its record what comes back; `ended` is done then."""

    def __init__(self, request: bytes, http: h11.Connection, record: Record, kind: Kind, begun: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._http = http
        self._record = record
        self._kind = kind
        self._begun = begun
        self._reader: Reader | None = None
        self._is_chunked = False
        self._pieces: list[bytes] = []
        """Of a chunk that is not yet whole, or of a refusal."""

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note what comes."""
        self._hear(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, if it was not there already."""
        if not self.ended.done():
            self._hear(b"")
        if not self.ended.done():
            self._end(f"cut: {exc or 'the connection was closed before the end'}")

    def _hear(self, data: bytes) -> None:
        now = time.perf_counter() - self._begun
        try:
            self._http.receive_data(data)
            while not self.ended.done():
                match self._http.next_event():
                    case h11.Response() as head:
                        self._begin(head)
                    case h11.Data() as piece:
                        self._take(now, bytes(piece.data), is_whole=piece.chunk_end or not self._is_chunked)
                    case h11.EndOfMessage():
                        self._finish(now)
                    case h11.InformationalResponse():
                        pass
                    case _:
                        break
        except Failed as failed:
            self._end(str(failed))
        except h11.RemoteProtocolError as error:
            self._end(f"cut: {error}")

    def _begin(self, head: h11.Response) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._record.status = head.status_code
        self._is_chunked = "transfer-encoding" in headers
        if head.status_code == 200:
            self._reader = self._kind.reader(headers)
        else:
            self._record.retry_after = retry_after(headers)

    def _take(self, now: float, piece: bytes, *, is_whole: bool) -> None:
        """What a server sends as one chunk came when its last byte did, in however many packets."""
        self._pieces.append(piece)
        if is_whole and self._reader is not None:
            data, self._pieces = b"".join(self._pieces), []
            self._note(now, self._reader.feed(data))

    def _note(self, now: float, amount: float) -> None:
        if amount:
            self._record.parts.append((now, amount))

    def _finish(self, now: float) -> None:
        if self._reader is None:
            raise Failed(f"{self._record.status} {problem_of(decoded(b''.join(self._pieces)))}")
        self._note(now, self._reader.end())
        self._record.tokens = self._reader.tokens
        self._end("" if self._record.parts else "the answer is empty")

    def _end(self, error: str) -> None:
        self._record.error = error
        self._record.ended = time.perf_counter() - self._begun
        self.ended.set_result(None)
        self._transport.close()


async def exchange(
    site: Site, kind: Kind, asked: Asked, headers: Mapping[str, str], record: Record, begun: float
) -> Record:
    """Ask, and wait for the end; what goes wrong is in the record too."""
    record.heard_s = asked.heard_s
    http = h11.Connection(h11.CLIENT)
    own = {"Host": site.url.partition("//")[2], "Content-Type": asked.content_type, "Connection": "close"}
    head = [*(own | dict(headers)).items(), ("Content-Length", str(len(asked.body)))]
    request = http.send(h11.Request(method="POST", target=site.prefix + kind.path, headers=head)) or b""
    request += (http.send(h11.Data(asked.body)) or b"") + (http.send(h11.EndOfMessage()) or b"")
    name = site.host if site.tls else None
    connect = asyncio.get_running_loop().create_connection
    record.sent = time.perf_counter() - begun
    transport = None
    try:
        async with asyncio.timeout(LONGEST_S):
            transport, protocol = await connect(
                lambda: Exchange(request, http, record, kind, begun),
                site.address,
                site.port,
                ssl=site.tls,
                server_hostname=name,
            )
            await protocol.ended
    except (OSError, TimeoutError) as error:
        record.error = f"timeout: no end after {LONGEST_S:g} s" if isinstance(error, TimeoutError) else f"lost: {error}"
        record.ended = time.perf_counter() - begun
    finally:
        if transport is not None:
            transport.close()
    return record
