"""The other front ends of a server with several: who has a response, a video or a world, and requests to it.

Front ends share no state, and the kernel gives no session affinity: each connection of a client can be at another one.
What a client creates is in the memory of the front end that created it, and the id names that front end: `video_f2_…`
is at number 2. A request with such an id can arrive at any front end:

| request | what happens at a front end that does not have the object |
|---|---|
| `/v1/responses/ID`, `/v1/videos/ID`, `/v1/worlds/ID` and below; `/v1/sessions/ID` | forwarded to the one of the id |
| `/v1/realtime?session_id=ID` | its WebSocket is forwarded there (`websocket_forwarding`) |
| `POST /v1/responses` with `previous_response_id` | the conversation is read from that front end |
| `GET /v1/videos`, `GET /v1/requests` | the lists of all front ends are merged |
| `/v1/requests/ID/trace`, `/v1/requests/ID/cancel` | every other front end is asked: clients can choose request ids |

Each front end listens at a Unix socket in the run directory for these requests and serves them as those of clients,
with the same authentication. A front end that is not reachable has lost its memory: its objects do not exist any more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import h11
import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from mstar.server.errors import ApiError
from mstar.server.write_timeout import ClientStalled
from mstar.wire.message import Peer
from mstar.wire.stats import MetricFamily

SIBLING_HEADER = b"mstar-front-end"
"""Header of a request that another front end sends: it gets only what this one has."""
FETCH_TIMEOUT_S = 2.0
"""Seconds to wait for a response of another front end that is merged into one."""
MAX_HEADER_BYTES = 128 << 10
_CHUNK_BYTES = 64 << 10
_OBJECT_ID = re.compile(r"[a-z]+_f([1-9][0-9]?)_")
_OBJECT_PATH = re.compile(r"/v1/(?:responses|sessions|videos|worlds)/([^/]+)")
_DROPPED_HEADERS = frozenset(
    (b"connection", b"keep-alive", b"expect", b"te", b"trailer", b"upgrade", b"proxy-connection", SIBLING_HEADER)
)
"""Headers of one connection, which are not forwarded. The body keeps its framing."""
_DROPPED_RESPONSE_HEADERS = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))


class Siblings:
    """The front ends of one server, seen from one of them."""

    def __init__(self, directory: Path, number: int, count: int, launcher: Peer) -> None:
        self.own_name = f"front-{number}"
        self.mark = f"f{number}_"
        """Part of the ids of this front end."""
        self.peers: Sequence[Peer] = ()
        """The other front ends that run."""
        self.roles = {f"front-{one}": "frontend" for one in range(1, count + 1)} | {launcher.name: "launcher"}
        """Roles of processes that neither compute nor schedule, by name."""
        self.exported: Mapping[str, Iterable[MetricFamily]] = {}
        """All metrics of the others for one page. One that did not answer is missing: its older values could be less
        than those on the last page of another front end, and Prometheus would read that as a restart."""
        self.sampled: dict[str, list[MetricFamily]] = {}
        """Last values of a few metrics of the others. They stay if one does not answer: a sum of counters must rise."""
        self._launcher = launcher
        self._directory = directory
        self._number = number
        self._others = [other for other in range(1, count + 1) if other != number]

    @property
    def own_socket(self) -> Path:
        """Path of the Unix socket of this front end."""
        return self._socket(self._number)

    @property
    def processes(self) -> tuple[Peer, ...]:
        """Processes with statistics that a server with one front end does not have."""
        return (*self.peers, self._launcher)

    @property
    def active_requests(self) -> int:
        """Requests in progress at the others, as of their last sample."""
        families = [family for peer in self.peers for family in self.sampled.get(peer.name, ())]
        running = [family.samples for family in families if family.name == "mstar_requests_in_progress"]
        return round(sum(value for samples in running for _, _, value in samples))

    def _socket(self, number: int) -> Path:
        return self._directory / f"front-{number}.http"

    # ---------------------------------------------------------------- one owner
    def owner_of(self, object_id: str) -> int | None:
        """Number of the other front end that has this object; None if it is this one or none."""
        match = _OBJECT_ID.match(object_id)
        return int(match[1]) if match and int(match[1]) in self._others else None

    def owner_of_request(self, scope: Scope) -> int | None:
        """Number of the other front end that has the object of a request; None if it is this one or none."""
        if scope["type"] == "websocket":
            ids = parse_qs(scope["query_string"].decode("latin-1")).get("session_id", [])
            return self.owner_of(ids[0]) if ids else None
        match = _OBJECT_PATH.match(scope["path"]) if scope["type"] == "http" else None
        return self.owner_of(match[1]) if match else None

    @property
    def other_sockets(self) -> list[Path]:
        """Paths of the Unix sockets of the other front ends."""
        return [self._socket(other) for other in self._others]

    def socket_of(self, owner: int) -> Path:
        """Path of the Unix socket of a front end."""
        return self._socket(owner)

    async def forward(self, owner: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request with its body, and its response. Raises ApiError before the response has begun."""
        has_begun = False
        try:
            upstream = await _Upstream.open(self._socket(owner))
            with closing(upstream):
                await upstream.send_head(scope["method"], _target(scope), _request_headers(scope))
                # The owner can respond before it has the whole body, for example if that is too large.
                sending = asyncio.create_task(_send_body(upstream, receive))
                try:
                    async for message in upstream.response():
                        has_begun = True
                        await send(message)
                finally:
                    sending.cancel()
        except (FileNotFoundError, ConnectionError, h11.ProtocolError, ClientStalled) as error:
            if has_begun:
                return  # closing the connection before the body is complete tells the client
            message = (
                f"front end {owner}, which had this object in its memory, has stopped; fix: create the object again"
            )
            raise ApiError(404, "not_found", message) from error

    async def fetch(self, owner: int, scope: Scope, target: str) -> tuple[int, bytes]:
        """Status and content of a path of another front end, with the headers of a client.

        Raises OSError, TimeoutError or h11.ProtocolError.
        """
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            return await self._fetch(owner, "GET", target.encode(), scope)

    # ---------------------------------------------------------------- all others
    async def ask_all(self, scope: Scope) -> list[tuple[int, bytes]]:
        """Status and content of the same request at every other front end that answers in time.

        Empty for a request that another front end sent: only the first one asks the others.
        """
        if any(name == SIBLING_HEADER for name, _ in scope["headers"]):
            return []
        queries = [self._try_fetch(other, scope) for other in self._others]
        return [answer for answer in await asyncio.gather(*queries) if answer is not None]

    async def merge_lists(self, scope: Scope) -> list[dict[str, Any]]:
        """Items of the lists (`data`) that every other front end returns for the same request."""
        return [
            item
            for status, content in await self.ask_all(scope)
            if status == 200
            for item in msgspec.json.decode(content)["data"]
        ]

    async def find_elsewhere(self, scope: Scope) -> Response | None:
        """The response of another front end that has what the request names; None if none has it."""
        answers = [(status, content) for status, content in await self.ask_all(scope) if status != 404]
        answers.sort(key=lambda answer: answer[0] != 200)  # a rejection of another one comes last
        return Response(answers[0][1], answers[0][0], media_type="application/json") if answers else None

    async def _try_fetch(self, other: int, scope: Scope) -> tuple[int, bytes] | None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._fetch(other, scope["method"], _target(scope), scope)
        except (OSError, TimeoutError, h11.ProtocolError):
            return None

    async def _fetch(self, other: int, method: str, target: bytes, scope: Scope) -> tuple[int, bytes]:
        with closing(await _Upstream.open(self._socket(other))) as upstream:
            framing = (b"content-length", b"transfer-encoding", b"content-type")
            headers = [(name, value) for name, value in _request_headers(scope) if name not in framing]
            await upstream.send_head(method, target, [*headers, (SIBLING_HEADER, str(self._number).encode())])
            await upstream.send(h11.EndOfMessage())
            status, content = 0, bytearray()
            async for message in upstream.response():
                status = message.get("status", status)
                content += message.get("body", b"")
            return status, bytes(content)


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return path + b"?" + scope["query_string"] if scope["query_string"] else path


def _request_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in scope["headers"] if name not in _DROPPED_HEADERS]
    if not any(name == b"host" for name, _ in headers):  # HTTP/1.0
        headers.append((b"host", b"localhost"))
    return headers


async def _send_body(upstream: _Upstream, receive: Receive) -> None:
    """Send the body, then wait until the client disconnects: that cancels the request at the owner."""
    is_read = True
    while (message := await receive())["type"] != "http.disconnect":
        try:
            if is_read and (body := message.get("body", b"")):
                await upstream.send(h11.Data(data=body))
            if is_read and not message.get("more_body", False):
                await upstream.send(h11.EndOfMessage())
        except (OSError, h11.ProtocolError):
            is_read = False  # the response, or its absence, tells why
    upstream.close()


class _Upstream:
    """One request to another front end, on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = h11.Connection(h11.CLIENT, MAX_HEADER_BYTES)

    @classmethod
    async def open(cls, path: Path) -> _Upstream:
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_unix_connection(str(path)))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def send_head(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of a request."""
        close = (b"connection", b"close")
        await self.send(h11.Request(method=method, target=target, headers=[*headers, close]))

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of a request."""
        self._writer.write(self._connection.send(event) or b"")
        await self._writer.drain()

    async def response(self) -> AsyncGenerator[Message]:
        """The response as ASGI messages."""
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                headers = [pair for pair in event.headers if pair[0] not in _DROPPED_RESPONSE_HEADERS]
                yield _start(event.status_code, headers)
            elif isinstance(event, h11.Data):
                yield {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the other front end has closed the connection")
        yield {"type": "http.response.body", "body": b"", "more_body": False}

    async def _next_event(self) -> Any:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._reader.read(_CHUNK_BYTES))
        return event


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}
