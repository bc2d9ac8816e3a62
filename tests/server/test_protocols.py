"""HTTP and WebSocket protocols: authentication on every route and method, timeouts, malformed and hostile input."""

import asyncio
import hmac
import itertools
import socket
import struct
import time
from contextlib import suppress

import httpx2
import pytest
from starlette.routing import Route
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mstar.config import HttpLimits
from mstar.requests import ChatRequest
from mstar.server.access.api_keys import ApiKeys
from mstar.server.app import PUBLIC_PATHS, build_app
from mstar.server.http_server import KEEP_ALIVE_TIMEOUT_S
from mstar.server.protocols import MAX_MESSAGE_FRAGMENTS, WebSocketProtocol, compute_max_connections
from mstar.server.request_context import RequestContext
from mstar.server.state import ServerState
from mstar.server.websocket_session import WebSocketHandler, websocket_endpoint
from tests.server.toy_models import Parrot
from tests.server.toy_server import chat_body, run_toy_server

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
WRONG = (
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "Bearer righ",
    "Bearer right2",
    "Basic right",
    "right",
    "Bearer a b",
)
ROUTES = build_app(ServerState({"parrot": Parrot()})).routes
PATHS = {route.path for route in ROUTES if isinstance(route, Route)} - PUBLIC_PATHS
PATHS = sorted(PATHS | {"/", "/nowhere", "/v1", "/v1/../health", "//health", "/health/", "/HEALTH"})
WEBSOCKET_PATHS = sorted({route.path for route in ROUTES if not isinstance(route, Route)} | {"/nowhere", "/v1/models"})


@pytest.fixture(scope="module")
def locked():
    with run_toy_server(keys=ApiKeys(["right", "other"])) as started:
        yield started


@pytest.fixture(scope="module")
def short_timeouts():
    """A server with short timeouts."""
    with run_toy_server(limits=HttpLimits(header_timeout_s=0.3, websocket_idle_timeout_s=0.3)) as started:
        started.http_server.config.timeout_keep_alive = 0.6
        yield started


def open_socket(server, *sent, receive_buffer=None):
    """A connection on which data was sent; `receive_buffer` is the size of its receive buffer."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(30)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    for data in sent:
        connection.sendall(data)
    return connection


def read_response(connection):
    """All data until the connection closes."""
    read = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            read += data
    return read


# ---------------------------------------------------------------- keys
@pytest.mark.parametrize("path", PATHS)
def test_every_route_and_method_needs_a_key(locked, path):
    for method, wrong in [*itertools.product(METHODS, WRONG[:1]), *itertools.product(("GET", "POST"), WRONG[1:])]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n"
        head += "" if wrong is None else f"Authorization: {wrong}\r\n"
        with open_socket(locked, f"{head}\r\n".encode()) as connection:  # without a body
            assert read_response(connection).startswith(b"HTTP/1.1 401 "), (method, wrong)


def test_endpoints_without_a_key_only_report_liveness(locked):
    with locked.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/healthz").text == "OK"


@pytest.mark.parametrize("path", WEBSOCKET_PATHS)
def test_every_websocket_needs_a_key(locked, path):
    url = locked.url.replace("http", "ws") + path
    for wrong in WRONG:
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers={} if wrong is None else {"Authorization": wrong}).close()
        assert refused.value.response.status_code == 401


def test_keys_are_compared_in_constant_time(monkeypatch):
    counts, compare_digest = [], hmac.compare_digest

    def compare(one, other):
        counts[-1] += 1
        return compare_digest(one, other)

    keys = ApiKeys([f"key{number}" for number in range(50)])
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for shown in ("Bearer key0", "Bearer key49", "Bearer wrong", "Basic key0", ""):
        counts.append(0)
        keys.authenticate(shown)
    assert counts == [50] * 5


# ---------------------------------------------------------------- slow clients
def test_headers_that_never_end_time_out(short_timeouts):
    begun = time.monotonic()
    slow = [open_socket(short_timeouts, b"GET /health HTTP/1.1\r\n") for _ in range(30)]
    closed = 0.0
    while slow:
        for connection in [*slow]:
            try:
                connection.sendall(b"X-A: b\r\n")
                connection.setblocking(False)
                is_over = connection.recv(1) == b""
            except BlockingIOError:
                is_over = False
            except OSError:
                is_over = True
            if is_over:
                slow.remove(connection)
                connection.close()
        closed = time.monotonic() - begun
        with short_timeouts.client() as client:
            assert client.get("/health").status_code == 200  # other clients are served meanwhile
        assert closed < 3
    assert closed >= 0.3


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",  # a response, then silence
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /he",  # a response, then incomplete headers
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",  # a response, but the body never ends
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",  # no Sec-WebSocket-Key
    ],
)
def test_an_incomplete_request_times_out(short_timeouts, sent):
    begun = time.monotonic()
    with open_socket(short_timeouts, sent) as connection:
        read_response(connection)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("piece", [b"\r\n", b"GET /health HTTP/1.1\r\n"])
def test_a_kept_connection_is_not_held_open_by_bytes_without_a_request(short_timeouts, piece):
    begun = time.monotonic()
    with open_socket(short_timeouts, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as connection, suppress(OSError):
        while time.monotonic() - begun < 3:
            connection.sendall(piece[:1])
            piece = piece[1:] + piece[:1]
            time.sleep(0.05)
    assert time.monotonic() - begun < 2


# ---------------------------------------------------------------- kept connections
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def test_an_idle_connection_stays_open_longer_than_clients_keep_it():
    with run_toy_server(limits=HttpLimits(header_timeout_s=0.2)) as server, open_socket(server, HEALTH) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.5)
        connection.sendall(HEALTH)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 "), "header_timeout_s starts with the first byte"
    client_s = {"httpx": httpx2.Limits().keepalive_expiry, "aiohttp": 15, "nginx, AWS": 60}
    assert max(client_s.values()) < KEEP_ALIVE_TIMEOUT_S


def test_a_request_that_arrives_before_a_late_keep_alive_timer_is_served():
    busy, wake = socket.socketpair()
    with run_toy_server() as server, busy, wake:
        server.http_server.config.timeout_keep_alive = 0.3
        server.run_in_loop(server.loop.add_reader, busy, lambda: (busy.recv(1), time.sleep(1)))
        with open_socket(server, HEALTH) as connection:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            wake.sendall(b"x")  # while it reads from another connection, the event loop is busy
            time.sleep(0.1)
            connection.sendall(HEALTH)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            assert connection.recv(1) == b"", "the timer closes it later"
        server.run_in_loop(server.loop.remove_reader, busy)


# ---------------------------------------------------------------- number of connections
def test_a_client_over_the_limit_that_sends_after_the_rejection_can_read_it():
    """To close the connection with unread bytes would reset it, and the reset deletes the response."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)
    with run_toy_server(limits=HttpLimits(max_connections=1)) as server, open_socket(server, HEALTH) as first:
        first.recv(1 << 16)
        for _ in range(10):
            with open_socket(server) as connection:
                time.sleep(0.05)  # it is rejected
                connection.sendall(request)
                time.sleep(0.05)
                response = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert response.startswith(b"HTTP/1.1 503 ")


def test_few_rejected_connections_linger(monkeypatch):
    monkeypatch.setattr("mstar.server.protocols.MAX_LINGERING", 3)
    with run_toy_server(limits=HttpLimits(max_connections=1)) as server:
        connections = [open_socket(server) for _ in range(8)]
        responses = [read_response(connection) for connection in connections[1:]]
        assert all(response.startswith(b"HTTP/1.1 503 ") for response in responses)
        assert len(server.http_server.server_state.connections) <= 1 + 3
        begun = time.monotonic()
        while len(server.http_server.server_state.connections) > 1 and time.monotonic() - begun < 10:
            time.sleep(0.05)
        assert len(server.http_server.server_state.connections) == 1, "LINGER_TIMEOUT_S ends the others"
        for connection in connections:
            connection.close()


def test_connections_over_the_limit_are_rejected():
    with run_toy_server(limits=HttpLimits(max_connections=40)) as few:
        connections = [open_socket(few) for _ in range(40)]
        with open_socket(few, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
            response = read_response(connection)
        for one in connections:
            one.close()
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in response
        assert b'"code":"too_many_connections"' in response
        statuses = []
        while statuses[-1:] != [200] and len(statuses) < 100:  # until the server has seen that they are closed
            time.sleep(0.05)
            with few.client() as client:
                statuses.append(client.get("/health").status_code)
        assert {*statuses[:-1]} <= {503}
        assert statuses[-1] == 200


def test_file_descriptors_are_reserved(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert compute_max_connections(HttpLimits()) == 768
    assert compute_max_connections(HttpLimits(max_connections=10)) == 10


# ---------------------------------------------------------------- WebSockets
def open_websocket(server, path="/v1/realtime?model=parrot", receive_buffer=None, **headers):
    """A connection with a completed WebSocket handshake."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    )
    head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    return open_socket(
        server,
        (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode(),
        receive_buffer=receive_buffer,
    )


def frame(opcode, data=b"", *, is_last=True, size=None):
    head = bytes([(0x80 if is_last else 0) | opcode])
    count = len(data) if size is None else size
    head += bytes([0x80 | count]) if count < 126 else bytes([0xFF]) + struct.pack(">Q", count)
    return head + bytes(4) + data


def close_code(data):
    """The code of a close frame at the end."""
    at = data.rindex(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4], "big")


FRAMES = {
    "reserved bits": (b"\xf1\x80" + bytes(4), 1002),
    "an unknown opcode": (frame(3), 1002),
    "not masked": (b"\x81\x01x", 1002),
    "a long ping": (b"\x89\xfe\x00\x80" + bytes(4 + 128), 1002),
    "a fragmented ping": (frame(9, is_last=False), 1002),
    "a continuation without a start": (frame(0, b"x"), 1002),
    "invalid UTF-8": (frame(1, b"\xff\xfe"), 1007),
    "2^63 bytes": (frame(2, size=2**63 - 1), 1009),
    "16 MiB": (frame(2, size=16 << 20), 1009),
    "endless fragments": (frame(1, is_last=False) + frame(0, is_last=False) * (MAX_MESSAGE_FRAGMENTS + 1), 1009),
    "a close without reason": (frame(8, b"\x03"), 1002),
}


@pytest.mark.parametrize("name", FRAMES)
def test_invalid_frames_close_a_websocket(server, name):
    sent, code = FRAMES[name]
    with open_websocket(server) as connection:
        while b"session.created" not in connection.recv(1 << 16):
            pass
        connection.sendall(sent)
        assert close_code(read_response(connection)) == code
    assert server.wait_until_idle()


def test_an_idle_websocket_is_closed(short_timeouts):
    with connect(short_timeouts.url.replace("http", "ws") + "/v1/realtime?model=parrot") as silent:
        assert "session.created" in silent.recv()
        assert "idle_timeout" in silent.recv(timeout=20)
        with pytest.raises(ConnectionClosed) as closed:
            silent.recv(timeout=20)
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "idle_timeout")


@pytest.mark.parametrize("count", [200, 5000])
def test_a_websocket_with_too_many_headers_is_rejected(short_timeouts, count):
    with open_websocket(short_timeouts, **{f"X-{number}": "y" for number in range(count)}) as connection:
        response = read_response(connection)
    assert response == b"" or response.startswith(b"HTTP/1.1 400 ")


def test_pings_of_a_client_that_does_not_read_are_not_buffered(monkeypatch):
    made = []
    begin = WebSocketProtocol.connection_made
    monkeypatch.setattr(WebSocketProtocol, "connection_made", lambda one, to: (made.append(one), begin(one, to))[1])
    with run_toy_server() as server, open_websocket(server, receive_buffer=4096) as connection:
        connection.recv(1 << 16)
        connection.settimeout(0.5)
        pings = frame(9, b"x" * 125) * 1000
        with suppress(TimeoutError):
            for _ in range(100):  # more than the kernel buffers
                connection.sendall(pings)
        (one,) = made
        assert one.transport.get_write_buffer_size() < 1 << 20


def test_a_websocket_stops_reading_when_its_handler_is_slow():
    """A handler that does not receive, and a client that keeps sending."""
    sent_messages = 0

    async def slow_handler(session):
        await session.accept()
        await asyncio.sleep(0.2)
        messages = [await session.receive() for _ in range(sent_messages)]
        assert {len(message) for message in messages} == {400_000}

    async def receive():
        nonlocal sent_messages
        sent_messages += 1
        await asyncio.sleep(0)
        return (
            {"type": "websocket.connect"}
            if sent_messages == 1
            else {"type": "websocket.receive", "text": "x" * 400_000}
        )

    async def send(_):
        pass

    async def run():
        state = ServerState({"parrot": Parrot()})
        scope = {"type": "websocket", "request_context": RequestContext("x"), "headers": [], "path": "/"}
        await WebSocketHandler(state, websocket_endpoint("/", slow_handler, ChatRequest))(scope, receive, send)

    asyncio.run(run())
    assert 3 <= sent_messages <= 8


def test_a_flooding_client_does_not_block_others(short_timeouts):
    """A chat request succeeds while other connections open and close."""
    for _ in range(30):
        open_socket(short_timeouts, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n").close()
    with short_timeouts.client() as client:
        answer = client.post("/v1/chat/completions", json=chat_body("x"))
    assert answer.status_code == 200, answer.text
    assert short_timeouts.wait_until_idle()
