"""Acceptor: accepts connections, a few in each turn of the event loop, and rejects requests beyond the limit.

asyncio's own server accepts whatever waits and makes a transport, a protocol and a task of each connection. In a flood
of new connections one turn of the loop then takes seconds, and everything in it is late: responses, rejections and
health checks. This one works in turns:

1. Accept at most `MAX_ACCEPTS_PER_TURN` connections and read what the client has sent.
2. A request that is not a POST request is served at once. While requests wait, `/health` gets its response without a
   transport: a transport takes several turns.
3. A complete POST request beyond the limit (`load_shedding`) gets its response without a transport, and the connection
   is closed. So does one that an open circuit rejects, if its client does not keep the connection.
4. Other POST requests are served in order of arrival, one tenant after the other, and at most `MAX_STARTS_PER_TURN` of
   them begin in one turn.

So a turn is short whatever the load is, and a rejection takes one turn.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from mstar.server.access.fast_reject import FastReject
from mstar.server.access.load_shedding import RawRequest, RequestMatcher, Slot, overloaded_error
from mstar.server.errors import ApiError
from mstar.server.protocols import HttpProtocol
from mstar.server.state import NOT_READY_RETRY_AFTER_S, ServerState

log = logging.getLogger("mstar.server")

MAX_ACCEPTS_PER_TURN = 256
"""Maximum number of connections accepted in one turn of the event loop."""
MAX_STARTS_PER_TURN = 4
"""Maximum number of POST requests on new connections that begin in one turn: about 10 ms of work."""
FIRST_READ_BYTES = 16 << 10
"""Maximum bytes read from a connection before it has a transport."""
ACCEPT_RETRY_S = 1.0
"""Seconds to wait if the process has no free file descriptor."""
LINGER_TIMEOUT_S = 0.5
"""Seconds to read the rest of a request that is rejected at shutdown: see `lingering_close`."""
LOG_INTERVAL_S = 1.0
"""Seconds after which rejected requests are counted in the metrics and logged."""
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_UNKNOWN_KEY = "\0"
"""Tenant of requests without a valid key. They share its slots, so that they cannot take those of tenants."""

_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close\r\n", re.IGNORECASE)
"""Header of a client that does not keep its connection."""
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_CLOSE_HEADERS = {"Connection": "close"}
_REJECTION_RESPONSE = overloaded_error().http_response(_CLOSE_HEADERS)
_HEALTH_REQUEST = b"GET /health HTTP/1.1\r\n"
_HEALTH_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\nConnection: close\r\n\r\n"
    b'{"status":"ok"}'
)
_SHUTDOWN_RESPONSE = ApiError(
    503,
    "not_ready",
    f"the server is draining; fix: retry after {NOT_READY_RETRY_AFTER_S:g} s",
    retry_after=NOT_READY_RETRY_AFTER_S,
).http_response(_CLOSE_HEADERS)

ProtocolFactory = Callable[[], HttpProtocol]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A connection with a POST request that has not begun."""

    connection: socket.socket
    data: bytes
    slot: Slot
    is_complete: bool
    """Whether its whole body is in `data`."""


class _WaitingRequests:
    """Queue of requests that have not begun. Tenants take turns."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, deque[_Waiting]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_tenant)

    def add(self, tenant: str, waiting: _Waiting) -> None:
        self._by_tenant.setdefault(tenant, deque()).append(waiting)

    def take(self) -> _Waiting:
        """The oldest request of the tenant that has waited longest for its turn."""
        tenant = next(iter(self._by_tenant))
        requests = self._by_tenant.pop(tenant)
        oldest = requests.popleft()
        if requests:
            self._by_tenant[tenant] = requests
        return oldest


class Acceptor:
    """Accepts the connections of one listening socket until it is closed. Belongs to the event loop that creates it."""

    def __init__(
        self, state: ServerState, fast_reject: FastReject, listener: socket.socket, make_protocol: ProtocolFactory
    ) -> None:
        self._state = state
        self._fast_reject = fast_reject
        self._matcher = RequestMatcher(state.endpoints)
        self._listener = listener
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._waiting = _WaitingRequests()
        self._started = 0
        """POST requests that began in this turn."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._rejected: Counter[str] = Counter()
        """Rejected requests since the last log line, by path."""
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting. Requests that wait get a 503."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        while self._waiting:
            waiting = self._waiting.take()
            waiting.slot.release()
            if waiting.is_complete:
                self._respond(waiting.connection, _SHUTDOWN_RESPONSE)
            else:
                self._add_task(self._respond_and_linger(waiting.connection, _SHUTDOWN_RESPONSE))

    async def wait_closed(self) -> None:
        """Wait for connections that are being set up or rejected."""
        await asyncio.gather(*self._tasks)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept_waiting)

    def _accept_waiting(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("cannot accept a connection: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._resume)
                return
            self._dispatch(connection)

    def _dispatch(self, connection: socket.socket) -> None:
        """Start, reject or queue a new connection."""
        try:
            data = connection.recv(FIRST_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = b""
        except OSError:
            connection.close()
            return
        request = self._matcher.match(data)
        if request is None:  # no data yet, or no work
            if self._waiting and data.startswith(_HEALTH_REQUEST) and data.endswith(b"\r\n\r\n"):
                self._state.metrics.requests.labels("/health", "200").inc()
                self._respond(connection, _HEALTH_RESPONSE)
            else:
                self._start(connection, data)
            return
        tenant, load_shedder = self._tenant_name(request), self._state.load_shedder
        has_slot = load_shedder.has_slot(tenant)
        if not has_slot and request.is_complete:
            self._respond(connection, _REJECTION_RESPONSE)
            self._record_rejection(request)
        elif _CLOSES.search(data) and (rejection := self._fast_reject.try_reject(data, has_slot=has_slot)) is not None:
            self._respond(connection, rejection.data)
        elif not has_slot:
            self._start(connection, data)  # the middleware rejects it
        else:
            self._waiting.add(tenant, _Waiting(connection, data, load_shedder.take(tenant), request.is_complete))
            self._start_waiting()

    def _tenant_name(self, request: RawRequest) -> str:
        tenant = self._state.keys.authenticate(request.authorization)
        return _UNKNOWN_KEY if tenant is None else tenant.name

    # ---------------------------------------------------------------- start
    def _start_waiting(self) -> None:
        """Start waiting connections, as many as this turn has left."""
        while self._waiting and self._started < MAX_STARTS_PER_TURN:
            waiting = self._waiting.take()
            if not self._started:
                self._loop.call_soon(self._begin_turn)
            self._started += 1
            self._start(waiting.connection, waiting.data, waiting.slot)

    def _begin_turn(self) -> None:
        self._started = 0
        self._start_waiting()

    def _start(self, connection: socket.socket, data: bytes, slot: Slot | None = None) -> None:
        self._add_task(self._connect(connection, data, slot))

    def _add_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, data: bytes, slot: Slot | None) -> None:
        protocol = self._make_protocol()
        protocol.begin_with(data, slot)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()
            if slot is not None:
                slot.release()

    # ---------------------------------------------------------------- rejection
    def _respond(self, connection: socket.socket, response: bytes) -> None:
        """Send the response to a complete request, and close the connection."""
        with suppress(OSError):  # the client can be gone
            connection.send(response, _SEND_FLAGS)  # it fits an empty send buffer
        connection.close()

    async def _respond_and_linger(self, connection: socket.socket, response: bytes) -> None:
        """Send the response to a request that is not complete, and read its rest before the connection closes."""
        with closing(connection), suppress(OSError, TimeoutError):
            connection.setblocking(False)
            connection.send(response, _SEND_FLAGS)
            connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_TIMEOUT_S):
                while await self._loop.sock_recv(connection, FIRST_READ_BYTES):
                    pass

    def _record_rejection(self, request: RawRequest) -> None:
        """Count a rejected request. Metrics and log get the count of an interval: each by itself would cost more."""
        if not self._rejected:
            self._loop.call_later(LOG_INTERVAL_S, self._log_rejections)
        self._rejected[request.endpoint.path] += 1

    def _log_rejections(self) -> None:
        count, metrics = self._rejected.total(), self._state.metrics
        for path, rejected in self._rejected.items():
            metrics.requests.labels(path, "429").inc(rejected)
        metrics.request_errors.labels("overloaded").inc(count)
        self._rejected.clear()
        log.warning("requests rejected", extra={"fields": {"code": "overloaded", "status": 429, "requests": count}})
