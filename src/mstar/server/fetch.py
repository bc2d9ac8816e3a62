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
from mstar.server.refusals import Refusal

MOST_BYTES = 32 << 20
"""How large a file may be that is fetched: as large as a body that brings it along."""
PATIENCE_S = 10.0
"""How long fetching may take, redirects included."""
REDIRECTS = 3
PIECE = 1 << 16
RESOLVING = 4
"""So many names are resolved at a time. They have threads of their own, because nobody can stop a resolver."""

_HOST = r"[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\]"
_URL = re.compile(rf"(https?)://({_HOST})(?::([0-9]{{1,5}}))?(/[!-~]*|\?[!-~]*)?", re.IGNORECASE)
_RULE = re.compile(rf"((?:\*\.)?(?:{_HOST}))(?::([0-9]{{1,5}}))?(?:=(.+))?", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_MOVED = (301, 302, 303, 307, 308)
_REFUSED = [
    ipaddress.ip_network(one)
    for one in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
"""What some versions of `ipaddress` call global, and what holds an IPv4 address that nobody looks at."""
_UNICAST = ipaddress.ip_network("2000::/3")
"""Global addresses of IPv6. Outside of it are those that stand for one of IPv4: mapped ones, and those of NAT64."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_public(address: Address) -> bool:
    """Whether an address is on the internet, and not one of this machine, its network or something in between."""
    is_special = address.is_multicast or address.is_reserved or any(address in one for one in _REFUSED)
    return address.is_global and not is_special and (address.version == 4 or address in _UNICAST)


@dataclass(frozen=True, slots=True)
class Rule:
    """A host that files may be fetched from: `name`, `*.name`, `name:port`, each with or without `=range`."""

    host: str
    port: int | None
    range: Network | None
    """Where the host must be; without it, at any public address."""

    @classmethod
    def of(cls, text: str) -> Rule:
        """A rule as an operator writes it. Raises LoadError."""
        match = _RULE.fullmatch(text)
        try:
            if match is None:
                raise ValueError("it is no host")
            host, port, where = match.groups()
            return cls(host.lower(), int(port) if port else None, ipaddress.ip_network(where) if where else None)
        except ValueError as error:
            what = f"no files can be allowed from {text!r}: {error}"
            fix = "write a name, *.name or name:port, and =10.0.0.0/8 behind it if it is at a private address"
            raise LoadError(f"{what}\n  fix: {fix}") from None

    def names(self, url: _Place) -> bool:
        """Whether it speaks of the host and the port of a URL."""
        is_host = url.host.endswith(self.host[1:]) if self.host.startswith("*.") else url.host == self.host
        return is_host and url.port == (self.port or _PORTS[url.scheme])

    def reaches(self, address: Address) -> bool:
        """Whether a host that it names may be at an address."""
        return is_public(address) if self.range is None else address in self.range


@dataclass(frozen=True, slots=True)
class _Place:
    """A URL in its parts."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        return self.host if self.port == _PORTS[self.scheme] else f"{self.host}:{self.port}"


class Fetcher:
    """Fetches files from hosts that rules name; without rules, from nowhere."""

    def __init__(
        self, rules: Iterable[Rule] = (), *, most_bytes: int = MOST_BYTES, patience_s: float = PATIENCE_S
    ) -> None:
        self._rules = tuple(rules)
        self._most_bytes = most_bytes
        self._patience_s = patience_s
        self._resolvers = ThreadPoolExecutor(RESOLVING, "resolver")

    @functools.cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def fetch(self, url: str, param: str) -> bytes:
        """The file at a URL that came as this parameter. Raises Refusal."""
        try:
            async with asyncio.timeout(self._patience_s):
                for _ in range(REDIRECTS + 1):
                    place = self._place(url, param)
                    status, found = await self._ask(place, param)
                    if status == 200:
                        return found
                    if status not in _MOVED:
                        raise Refusal(400, "url_failed", f"{param}: the host answered {status}", param=param)
                    url = urljoin(url, found.decode("latin-1"))
        except TimeoutError:
            raise Refusal(400, "url_failed", f"{param}: the file did not come in time", param=param) from None
        except (OSError, ValueError, h11.RemoteProtocolError):
            raise Refusal(400, "url_failed", f"{param}: the file could not be fetched", param=param) from None
        raise Refusal(400, "url_failed", f"{param}: more than {REDIRECTS} redirects", param=param)

    def _place(self, url: str, param: str) -> _Place:
        """The parts of a URL, if files may be fetched from there."""
        match = _URL.fullmatch(url)
        if match is None:
            what = f"{param}: a data: URL in base64, or a plain http or https URL is needed"
            raise Refusal(400, "url_not_allowed", what, param=param)
        scheme, host, port, target = match.groups()
        scheme, target = scheme.lower(), (target or "/").partition("#")[0]
        place = _Place(scheme, host.lower(), int(port or _PORTS[scheme]), f"{'/' * (target[0] != '/')}{target}")
        if not any(rule.names(place) for rule in self._rules):
            raise _not_allowed(param, f"no files are fetched from {place.origin}", place.origin)
        return place

    async def _ask(self, place: _Place, param: str) -> tuple[int, bytes]:
        """What a host answers: a status, and the file or where else it is."""
        addresses = await self._addresses(place, param)
        reader, writer = await self._connect(place, addresses)
        try:
            async with aclosing(_events(reader, writer, place)) as events:
                return await self._read(events, param)
        finally:
            writer.transport.abort()  # nothing more is wanted, and nobody is waited for

    async def _addresses(self, place: _Place, param: str) -> Sequence[Address]:
        """All the addresses of a host, none of which may be one that must not be reached."""
        ask = functools.partial(socket.getaddrinfo, place.host.strip("[]"), place.port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._resolvers, ask)
        addresses = [ipaddress.ip_address(one[4][0]) for one in found]
        rules = [rule for rule in self._rules if rule.names(place)]
        if not all(any(rule.reaches(address) for rule in rules) for address in addresses):
            raise _not_allowed(param, f"{place.origin} is at an address that is not public", f"{place.origin}=RANGE")
        return addresses

    async def _connect(
        self, place: _Place, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        last: OSError | None = None
        trust, name = (self._trust, place.host.strip("[]")) if place.scheme == "https" else (None, None)
        for address in addresses:
            try:  # an address is not resolved again
                return await asyncio.open_connection(str(address), place.port, ssl=trust, server_hostname=name)
            except OSError as error:
                last = error
        raise last or OSError("the name stands for no address")

    async def _read(self, events: AsyncGenerator[h11.Event], param: str) -> tuple[int, bytes]:
        status, read = 0, bytearray()
        async for event in events:
            if isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
                if status != 200:
                    return status, headers.get(b"location", b"")
                if headers.get(b"content-encoding", b"identity") != b"identity":
                    raise ValueError("it was asked for as it is")
                if int(headers.get(b"content-length", b"0")) > self._most_bytes:
                    raise self._too_large(param)
            elif isinstance(event, h11.Data):
                read += event.data
                if len(read) > self._most_bytes:
                    raise self._too_large(param)
        return status, bytes(read)

    def _too_large(self, param: str) -> Refusal:
        what = f"{param}: the file may have {self._most_bytes} bytes, and has more"
        return Refusal(413, "too_large", what, param=param)


async def _events(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: _Place
) -> AsyncGenerator[h11.Event]:
    """Ask for a file; what comes, until its end."""
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", place.origin), ("Accept", "*/*"), ("Accept-Encoding", "identity"), ("Connection", "close")]
    ask = connection.send(h11.Request(method="GET", target=place.target, headers=headers))
    end = connection.send(h11.EndOfMessage())
    assert ask is not None, "it is no end of a connection"
    writer.write(ask + (end or b""))
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(PIECE))
        elif isinstance(event, h11.Event):
            yield event
        if isinstance(event, h11.EndOfMessage):
            return


def _not_allowed(param: str, what: str, rule: str) -> Refusal:
    fix = f"who runs this server can allow it with --allow-media-host {rule}"
    return Refusal(400, "url_not_allowed", f"{param}: {what}; {fix}", param=param)
