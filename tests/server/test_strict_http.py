"""Strict HTTP: malformed and ambiguous requests, trailers, upgrades, pipelined requests and HTTP/1.0 clients."""

import json
import re
from contextlib import suppress

import pytest

from mstar.config import HttpLimits
from mstar.server.access.api_keys import ApiKeys
from tests.server.test_protocols import HEALTH, open_socket, read_response
from tests.server.toy_server import chat_body, run_toy_server


@pytest.fixture(scope="module")
def locked():
    with run_toy_server(keys=ApiKeys(["right"])) as started:
        yield started


@pytest.fixture(scope="module")
def short_timeouts():
    """A server with a short header timeout."""
    with run_toy_server(limits=HttpLimits(header_timeout_s=0.3)) as started:
        yield started


HOSTILE = {
    "a header of a megabyte": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
    "100000 headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "two lengths": b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "an invalid length": b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
    "a huge chunk": b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"f" * 40
    + b"\r\n",
    "two transfer encodings": b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    b"0\r\n\r\n",
    "chunks of HTTP/1.0": b"POST /v1/generate HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2.0": b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
    "an unknown method": b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a trailer of a megabyte": b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    + b"y" * (1 << 20),
    "another transfer encoding": b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    "a header over two lines": b"GET /health HTTP/1.1\r\nHost: x\r\n y: z\x00\r\n\r\n",
    "an endless line": b"GET /" + b"a" * (1 << 20),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "nonsense": b"\x00\xff\x13\x37" * 100 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_requests_are_rejected(short_timeouts, name):
    with open_socket(short_timeouts) as connection:
        with suppress(OSError):  # it has closed already
            connection.sendall(HOSTILE[name])
        response = read_response(connection)
    assert response == b"" or response.split(b" ")[1] in (b"400", b"413", b"431", b"501"), response[:200]


AMBIGUOUS = {
    "a length and a transfer encoding": b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a transfer encoding and a length": b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTRANSFER-ENCODING: Chunked\r\n"
    b"content-length: 0\r\n\r\n0\r\n\r\n",
    "bare LF in all lines": b"GET /v1/models HTTP/1.1\nHost: x\n\n",
    "bare LF after the request line": b"GET /v1/models HTTP/1.1\nHost: x\r\n\r\n",
    "bare LF after a header": b"GET /v1/models HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
    "bare LF at the end of the headers": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\n",
    "bare LF before the request line": b"\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header folded with a space": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: y\r\n z\r\n\r\n",
    "a header folded with a tab": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: y\r\n\tz\r\n\r\n",
    "bare LF in a trailer": b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n",
}
"""Requests that a proxy can read differently from the server (request smuggling)."""


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_request_gets_400_and_the_connection_closes(short_timeouts, name):
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with open_socket(short_timeouts, AMBIGUOUS[name] + inner) as connection:
        response = read_response(connection)
    assert response.startswith(b"HTTP/1.1 400 "), response[:200]
    assert b"connection: close" in response.lower()
    assert response.count(b"HTTP/1.1 ") == 1
    assert b'"object":"list"' not in response


def test_a_request_in_single_bytes_is_served(server):
    request = b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n"
    pieces = [request[index : index + 1] for index in range(len(request))]
    with open_socket(server, *pieces) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 405 ")


def test_a_trailer_is_no_header(locked):
    """A request is authorized by its headers; a proxy in front may have checked these only."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with open_socket(locked, head + b"0\r\nAuthorization: Bearer right\r\n\r\n") as connection:
        assert read_response(connection).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("upgrade", ["h2c", "foo"])
def test_an_upgrade_to_another_protocol_is_ignored(server, upgrade):
    """Java's HTTP client asks for HTTP/2 with every request, and sends the body behind the headers."""
    body = json.dumps(chat_body("hi")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAEAAEAA\r\n"
    head += f"Connection: Upgrade, HTTP2-Settings\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    health = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    for pieces in ([head.encode() + b"\r\n" + body + health], [head.encode(), b"\r\n", body[:9], body[9:], health]):
        with open_socket(server, *pieces) as connection:
            response = read_response(connection)
        assert response.count(b"HTTP/1.1 200 ") == 2
        assert b'"object":"chat.completion"' in response
        assert response.endswith(b'{"status":"ok"}')


def test_pipelined_requests_are_answered_in_order(server):
    requests = [f"GET /v1/models/none{number} HTTP/1.1\r\nHost: x\r\n\r\n" for number in range(50)]
    requests.append("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    with open_socket(server, "".join(requests).encode()) as connection:
        response = read_response(connection).decode()
    numbers = [int(number) for number in re.findall(r"none(\d+)", response)]
    assert [*dict.fromkeys(numbers)] == [*range(50)]
    assert response.endswith('{"status":"ok"}')


def test_pipelined_requests_are_limited(server):
    """Each takes memory before it is authorized."""
    with open_socket(server, HEALTH * 5000) as connection:
        assert read_response(connection).count(b"HTTP/1.1 200 ") < 5000
    with server.client() as client:
        assert client.get("/health").status_code == 200


def test_bytes_that_are_no_request_do_not_change_the_response_before_them(server):
    request = json.dumps(chat_body("hi", stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n".encode()
    with open_socket(server, head + request) as connection:
        response = connection.recv(1 << 16)
        with suppress(OSError):
            connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        response += read_response(connection)
    assert response.count(b"HTTP/1.1 ") <= 2
    assert b"400" not in response.split(b"0\r\n\r\n")[0]


def test_an_http_1_0_client_gets_no_chunks(server):
    for stream in (False, True):
        body = json.dumps(chat_body("hi", stream=stream)).encode()
        head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with open_socket(server, head + body) as connection:
            head, _, content = read_response(connection).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert (
            (content.startswith(b"data: {") and content.endswith(b"data: [DONE]\n\n"))
            if stream
            else json.loads(content)
        )
