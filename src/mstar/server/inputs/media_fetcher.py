"""Files that a client only names by a URL: fetched from hosts that the operator has listed, and from nowhere else.

A name is resolved once. Every address it stands for must be one that may be reached, and the connection goes to such an
address itself, so nobody can answer differently the second time. A redirect is another URL, held against the same list.
Nothing of this process goes along: no key, no cookie, no proxy. What comes back is decoded elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import urljoin

import h11

from mstar.errors import LoadError
from mstar.server.errors import ApiError

MAX_FILE_BYTES = 32 << 20
"""How large a file may be that is fetched: as large as a body that brings it along."""
FETCH_TIMEOUT_S = 10.0
"""How long fetching may take, redirects included."""
MAX_REDIRECTS = 3
READ_CHUNK_BYTES = 1 << 16
RESOLVER_THREADS = 4
"""So many names are resolved at a time. They have threads of their own, because nobody can stop a resolver."""

_HOST = r"[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\]"
_URL = re.compile(rf"(https?)://({_HOST})(?::([0-9]{{1,5}}))?(/[!-~]*|\?[!-~]*)?", re.IGNORECASE)
_ALLOWED_HOST = re.compile(rf"((?:\*\.)?(?:{_HOST}))(?::([0-9]{{1,5}}))?(?:=(.+))?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_BLOCKED_NETWORKS = [
    ipaddress.ip_network(one)
    for one in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
"""What some versions of `ipaddress` call global, and what holds an IPv4 address that nobody looks at."""
_IPV6_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""Global addresses of IPv6. Outside of it are those that stand for one of IPv4: mapped ones, and those of NAT64."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_public(address: Address) -> bool:
    """Whether an address is on the internet, and not one of this machine, its network or something in between."""
    is_special = address.is_multicast or address.is_reserved or any(address in one for one in _BLOCKED_NETWORKS)
    return address.is_global and not is_special and (address.version == 4 or address in _IPV6_GLOBAL_UNICAST)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """A host that files may be fetched from: `name`, `*.name`, `name:port`, each with or without `=range`."""

    host: str
    port: int | None
    network: Network | None
    """Where the host must be; without it, at any public address."""

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """A rule as an operator writes it. Raises LoadError."""
        match = _ALLOWED_HOST.fullmatch(text)
        try:
            if match is None:
                raise ValueError("it is no host")
            host, port, where = match.groups()
            return cls(host.lower(), int(port) if port else None, ipaddress.ip_network(where) if where else None)
        except ValueError as error:
            what = f"no files can be allowed from {text!r}: {error}"
            fix = "write a name, *.name or name:port, and =10.0.0.0/8 behind it if it is at a private address"
            raise LoadError(f"{what}\n  fix: {fix}") from None

    def matches_url(self, url: _ParsedUrl) -> bool:
        """Whether it speaks of the host and the port of a URL."""
        is_host = url.host.endswith(self.host[1:]) if self.host.startswith("*.") else url.host == self.host
        return is_host and url.port == (self.port or _DEFAULT_PORTS[url.scheme])

    def allows_address(self, address: Address) -> bool:
        """Whether a host that it names may be at an address."""
        return is_public(address) if self.network is None else address in self.network


@dataclass(frozen=True, slots=True)
class _ParsedUrl:
    """A URL in its parts."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        return self.host if self.port == _DEFAULT_PORTS[self.scheme] else f"{self.host}:{self.port}"


class MediaFetcher:
    """Fetches files from hosts that rules name; without rules, from nowhere."""

    def __init__(
        self,
        allowed_hosts: Iterable[AllowedHost] = (),
        *,
        max_bytes: int = MAX_FILE_BYTES,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._allowed_hosts = tuple(allowed_hosts)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._resolver_pool = ThreadPoolExecutor(RESOLVER_THREADS, "resolver")

    @functools.cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def fetch(self, url: str, param: str) -> bytes:
        """The file at a URL that came as this parameter. Raises Refusal."""
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    place = self._parse_allowed_url(url, param)
                    status, found = await self._request(place, param)
                    if status == 200:
                        return found
                    if status not in _REDIRECT_STATUSES:
                        raise ApiError(400, "url_failed", f"{param}: the host answered {status}", param=param)
                    url = urljoin(url, found.decode("latin-1"))
        except TimeoutError:
            raise ApiError(400, "url_failed", f"{param}: the file did not come in time", param=param) from None
        except (OSError, ValueError, h11.RemoteProtocolError):
            raise ApiError(400, "url_failed", f"{param}: the file could not be fetched", param=param) from None
        raise ApiError(400, "url_failed", f"{param}: more than {MAX_REDIRECTS} redirects", param=param)

    def _parse_allowed_url(self, url: str, param: str) -> _ParsedUrl:
        """The parts of a URL, if files may be fetched from there."""
        match = _URL.fullmatch(url)
        if match is None:
            what = f"{param}: a data: URL in base64, or a plain http or https URL is needed"
            raise ApiError(400, "url_not_allowed", what, param=param)
        scheme, host, port, target = match.groups()
        scheme, target = scheme.lower(), (target or "/").partition("#")[0]
        place = _ParsedUrl(
            scheme, host.lower(), int(port or _DEFAULT_PORTS[scheme]), f"{'/' * (target[0] != '/')}{target}"
        )
        if not any(rule.matches_url(place) for rule in self._allowed_hosts):
            raise _not_allowed(param, f"no files are fetched from {place.origin}", place.origin)
        return place

    async def _request(self, url: _ParsedUrl, param: str) -> tuple[int, bytes]:
        """What a host answers: a status, and the file or where else it is."""
        addresses = await self._resolve(url, param)
        reader, writer = await self._connect(url, addresses)
        try:
            async with aclosing(_http_events(reader, writer, url)) as events:
                return await self._read_response(events, param)
        finally:
            writer.transport.abort()  # nothing more is wanted, and nobody is waited for

    async def _resolve(self, url: _ParsedUrl, param: str) -> Sequence[Address]:
        """All the addresses of a host, none of which may be one that must not be reached."""
        ask = functools.partial(socket.getaddrinfo, url.host.strip("[]"), url.port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._resolver_pool, ask)
        addresses = [ipaddress.ip_address(one[4][0]) for one in found]
        rules = [rule for rule in self._allowed_hosts if rule.matches_url(url)]
        if not all(any(rule.allows_address(address) for rule in rules) for address in addresses):
            raise _not_allowed(param, f"{url.origin} is at an address that is not public", f"{url.origin}=RANGE")
        return addresses

    async def _connect(
        self, url: _ParsedUrl, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        last: OSError | None = None
        trust, name = (self._ssl_context, url.host.strip("[]")) if url.scheme == "https" else (None, None)
        for address in addresses:
            try:  # an address is not resolved again
                return await asyncio.open_connection(str(address), url.port, ssl=trust, server_hostname=name)
            except OSError as error:
                last = error
        raise last or OSError("the name stands for no address")

    async def _read_response(self, events: AsyncGenerator[h11.Event], param: str) -> tuple[int, bytes]:
        status, read = 0, bytearray()
        async for event in events:
            if isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
                if status != 200:
                    return status, headers.get(b"location", b"")
                if headers.get(b"content-encoding", b"identity") != b"identity":
                    raise ValueError("it was asked for as it is")
                if int(headers.get(b"content-length", b"0")) > self._max_bytes:
                    raise self._too_large(param)
            elif isinstance(event, h11.Data):
                read += event.data
                if len(read) > self._max_bytes:
                    raise self._too_large(param)
        return status, bytes(read)

    def _too_large(self, param: str) -> ApiError:
        what = f"{param}: the file may have {self._max_bytes} bytes, and has more"
        return ApiError(413, "too_large", what, param=param)


async def _http_events(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: _ParsedUrl
) -> AsyncGenerator[h11.Event]:
    """Ask for a file; what comes, until its end."""
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", url.origin), ("Accept", "*/*"), ("Accept-Encoding", "identity"), ("Connection", "close")]
    ask = connection.send(h11.Request(method="GET", target=url.target, headers=headers))
    end = connection.send(h11.EndOfMessage())
    assert ask is not None, "it is no end of a connection"
    writer.write(ask + (end or b""))
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_CHUNK_BYTES))
        elif isinstance(event, h11.Event):
            yield event
        if isinstance(event, h11.EndOfMessage):
            return


def _not_allowed(param: str, what: str, allow_flag: str) -> ApiError:
    fix = f"who runs this server can allow it with --allow-media-host {allow_flag}"
    return ApiError(400, "url_not_allowed", f"{param}: {what}; {fix}", param=param)
