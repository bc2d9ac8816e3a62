"""SSRF-safe media fetcher: downloads files that a request names by URL, from hosts on the operator's allow-list only.

A host name is resolved once, every address must be allowed, and the connection is made to such an address, which rules
out DNS rebinding. Redirects are checked against the same allow-list. No key, cookie or proxy setting of this process is
used. Downloaded files are decoded in `mstar.media`.
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
"""Maximum bytes of a downloaded file; the same as the body limit for inline files."""
FETCH_TIMEOUT_S = 10.0
"""Seconds to wait for a download, redirects included."""
MAX_REDIRECTS = 3
READ_CHUNK_BYTES = 1 << 16
RESOLVER_THREADS = 4
"""Maximum concurrent DNS lookups. They have their own threads, because `getaddrinfo` cannot be cancelled."""

_HOST = r"[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\]"
_URL = re.compile(rf"(https?)://({_HOST})(?::([0-9]{{1,5}}))?(/[!-~]*|\?[!-~]*)?", re.IGNORECASE)
_ALLOWED_HOST = re.compile(rf"((?:\*\.)?(?:{_HOST}))(?::([0-9]{{1,5}}))?(?:=(.+))?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_BLOCKED_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
"""Networks that some versions of `ipaddress` call global, and transition networks that embed an IPv4 address."""
_IPV6_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""Global unicast IPv6. Mapped IPv4 and NAT64 addresses lie outside of it."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet: not loopback, private, link-local, reserved or multicast."""
    is_blocked = any(address in network for network in _BLOCKED_NETWORKS)
    is_special = address.is_multicast or address.is_reserved or is_blocked
    return address.is_global and not is_special and (address.version == 4 or address in _IPV6_GLOBAL_UNICAST)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """Allow-list entry: `name`, `*.name` or `name:port`, optionally followed by `=network` (CIDR)."""

    host: str
    port: int | None
    network: Network | None
    """Network that the host's addresses must be in; None: any public address."""

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Parse a value of `--allow-media-host`. Raises LoadError."""
        match = _ALLOWED_HOST.fullmatch(text)
        try:
            if match is None:
                raise ValueError("not a host name")
            host, port, network = match.groups()
            return cls(host.lower(), int(port) if port else None, ipaddress.ip_network(network) if network else None)
        except ValueError as error:
            fix = "write name, *.name or name:port, followed by =10.0.0.0/8 if its address is private"
            raise LoadError(f"invalid allowed media host {text!r}: {error}\n  fix: {fix}") from None

    def matches_url(self, url: _ParsedUrl) -> bool:
        """Whether the host and port of a URL match this entry."""
        is_host = url.host.endswith(self.host[1:]) if self.host.startswith("*.") else url.host == self.host
        return is_host and url.port == (self.port or _DEFAULT_PORTS[url.scheme])

    def allows_address(self, address: Address) -> bool:
        """Whether this entry allows a connection to an address of the host."""
        return is_public(address) if self.network is None else address in self.network


@dataclass(frozen=True, slots=True)
class _ParsedUrl:
    """Parts of a URL, normalized."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        return self.host if self.port == _DEFAULT_PORTS[self.scheme] else f"{self.host}:{self.port}"


class MediaFetcher:
    """Downloads files from allowed hosts; without allowed hosts, every URL is rejected."""

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
        """Download the file at a URL; `param` names the request field in errors. Raises ApiError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    status, content = await self._request(self._parse_allowed_url(url, param), param)
                    if status == 200:
                        return content
                    if status not in _REDIRECT_STATUSES:
                        raise _url_failed(param, f"the host responded with status {status}", "check the URL")
                    url = urljoin(url, content.decode("latin-1"))
        except TimeoutError:
            fix = "send the file inline as a data: URL"
            raise _url_failed(param, f"the download took longer than {self._timeout_s:g} s", fix) from None
        except (OSError, ValueError, h11.RemoteProtocolError):
            raise _url_failed(param, "the file could not be downloaded", "check the URL") from None
        raise _url_failed(param, f"more than {MAX_REDIRECTS} redirects", "send the final URL")

    def _parse_allowed_url(self, url: str, param: str) -> _ParsedUrl:
        """Parse a URL and check its host and port against the allow-list. Raises ApiError."""
        match = _URL.fullmatch(url)
        if match is None:
            message = f"{param}: the URL is not supported. fix: send a base64 data: URL or a plain http or https URL"
            raise ApiError(400, "url_not_allowed", message, param=param)
        scheme, host, port, target = match.groups()
        scheme, target = scheme.lower(), (target or "/").partition("#")[0]
        path = target if target.startswith("/") else f"/{target}"
        parsed = _ParsedUrl(scheme, host.lower(), int(port or _DEFAULT_PORTS[scheme]), path)
        if not any(allowed.matches_url(parsed) for allowed in self._allowed_hosts):
            raise _not_allowed(param, f"downloads from {parsed.origin} are not allowed", parsed.origin)
        return parsed

    async def _request(self, url: _ParsedUrl, param: str) -> tuple[int, bytes]:
        """Send one GET; return the status and the file, or the `Location` of a redirect."""
        addresses = await self._resolve(url, param)
        reader, writer = await self._connect(url, addresses)
        try:
            async with aclosing(_http_events(reader, writer, url)) as events:
                return await self._read_response(events, param)
        finally:
            writer.transport.abort()  # without waiting for the peer to close

    async def _resolve(self, url: _ParsedUrl, param: str) -> Sequence[Address]:
        """Resolve a host. Raises ApiError if any of its addresses is not allowed."""
        lookup = functools.partial(socket.getaddrinfo, url.host.strip("[]"), url.port, type=socket.SOCK_STREAM)
        results = await asyncio.get_running_loop().run_in_executor(self._resolver_pool, lookup)
        addresses = [ipaddress.ip_address(result[4][0]) for result in results]
        matching = [allowed for allowed in self._allowed_hosts if allowed.matches_url(url)]
        if not all(any(allowed.allows_address(address) for allowed in matching) for address in addresses):
            raise _not_allowed(param, f"{url.origin} has an address that is not public", f"{url.origin}=NETWORK")
        return addresses

    async def _connect(
        self, url: _ParsedUrl, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        last_error: OSError | None = None
        context, name = (self._ssl_context, url.host.strip("[]")) if url.scheme == "https" else (None, None)
        for address in addresses:
            try:  # by address, so that the name is not resolved again
                return await asyncio.open_connection(str(address), url.port, ssl=context, server_hostname=name)
            except OSError as error:
                last_error = error
        raise last_error or OSError("the host has no address")

    async def _read_response(self, events: AsyncGenerator[h11.Event], param: str) -> tuple[int, bytes]:
        status, content = 0, bytearray()
        async for event in events:
            if isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
                if status != 200:
                    return status, headers.get(b"location", b"")
                if headers.get(b"content-encoding", b"identity") != b"identity":
                    raise ValueError("the response is compressed although only identity was accepted")
                if int(headers.get(b"content-length", b"0")) > self._max_bytes:
                    raise self._too_large(param)
            elif isinstance(event, h11.Data):
                content += event.data
                if len(content) > self._max_bytes:
                    raise self._too_large(param)
        return status, bytes(content)

    def _too_large(self, param: str) -> ApiError:
        message = f"{param}: the file is larger than {self._max_bytes} bytes. fix: send a smaller file"
        return ApiError(413, "too_large", message, param=param)


async def _http_events(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: _ParsedUrl
) -> AsyncGenerator[h11.Event]:
    """Send a GET request and yield the events of the response until its end."""
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", url.origin), ("Accept", "*/*"), ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = connection.send(h11.Request(method="GET", target=url.target, headers=headers))
    end = connection.send(h11.EndOfMessage())
    assert request is not None, "only a closed connection sends no bytes"
    writer.write(request + (end or b""))
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_CHUNK_BYTES))
        elif isinstance(event, h11.Event):
            yield event
        if isinstance(event, h11.EndOfMessage):
            return


def _url_failed(param: str, reason: str, fix: str) -> ApiError:
    return ApiError(400, "url_failed", f"{param}: {reason}. fix: {fix}", param=param)


def _not_allowed(param: str, reason: str, allow_value: str) -> ApiError:
    fix = f"send the file inline as a data: URL, or start the server with --allow-media-host {allow_value}"
    return ApiError(400, "url_not_allowed", f"{param}: {reason}. fix: {fix}", param=param)
