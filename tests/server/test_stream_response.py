"""Streamed responses: one write for each chunk, the same bytes as through ASGI, backpressure, errors, keep-alive."""

import asyncio
import json
import re

import pytest

from mstar.server.errors import ApiError
from mstar.server.request_context import RequestContext
from mstar.server.stream_response import FLOW_CONTROL, EventStreamResponse, StreamResponse
from mstar.server.write_timeout import CancellableFlowControl, ClientStalled
from tests.server.test_protocols import open_socket
from tests.server.toy_server import chat_body


class Transport:
    """A connection that keeps what is written to it."""

    def __init__(self):
        self.writes = []
        self.closing = False

    def write(self, data):
        self.writes.append(data)

    def is_closing(self):
        return self.closing


class Exchange:
    """A connection and the ASGI messages of one response."""

    def __init__(self, **scope):
        self.transport = Transport()
        self.flow = CancellableFlowControl(self.transport, self.transport)
        self.context = RequestContext("one")
        self.scope = {"type": "http", "http_version": "1.1", "method": "POST", "request_context": self.context}
        self.scope |= {"state": {FLOW_CONTROL: self.flow}} | scope
        self.messages = []

    async def send(self, message):
        self.messages.append(message)

    async def respond(self, response):
        await response(self.scope, None, self.send)

    @property
    def bodies(self):
        """Bodies of the ASGI messages, and whether more follow."""
        return [(message["body"], message["more_body"]) for message in self.messages[1:]]


async def chunks(*parts):
    for part in parts:
        yield part


def run(scenario):
    return asyncio.run(scenario())


def test_a_chunk_is_one_write_to_the_connection():
    async def scenario():
        exchange = Exchange()
        await exchange.respond(StreamResponse(chunks(b"one", b"", b"x" * 300), "audio/wav", {}))
        return exchange

    exchange = run(scenario)
    assert exchange.transport.writes == [b"3\r\none\r\n", b"12c\r\n" + b"x" * 300 + b"\r\n"]
    assert exchange.messages[0]["type"] == "http.response.start"
    assert exchange.bodies == [(b"", False)]
    assert exchange.context.bytes_out == 303


@pytest.mark.parametrize(
    ("scope", "headers"), [({"http_version": "1.0"}, {}), ({"method": "HEAD"}, {}), ({}, {"Content-Length": "3"})]
)
def test_a_body_that_is_not_chunked_takes_the_path_of_asgi(scope, headers):
    async def scenario():
        exchange = Exchange(**scope)
        await exchange.respond(StreamResponse(chunks(b"one"), "audio/wav", headers))
        return exchange

    exchange = run(scenario)
    assert exchange.transport.writes == []
    assert exchange.bodies == [(b"one", True), (b"", False)]


def test_a_client_that_has_left_gets_no_more_bytes():
    async def scenario():
        exchange = Exchange()
        exchange.transport.closing = True
        await exchange.respond(StreamResponse(chunks(b"one"), "audio/wav", {}))
        return exchange

    exchange = run(scenario)
    assert (exchange.transport.writes, exchange.context.bytes_out) == ([], 0)


def test_a_chunk_waits_until_the_client_reads():
    async def scenario():
        exchange = Exchange()
        exchange.flow.pause_writing()
        responding = asyncio.create_task(exchange.respond(StreamResponse(chunks(b"one"), "audio/wav", {})))
        await asyncio.sleep(0.01)
        assert exchange.transport.writes == []
        exchange.flow.resume_writing()
        await responding
        assert exchange.transport.writes == [b"3\r\none\r\n"]

    run(scenario)


def test_the_events_of_a_client_that_stalls_end_with_the_error():
    async def scenario():
        exchange = Exchange()
        exchange.flow.pause_writing()
        response = EventStreamResponse(chunks(b"one"), lambda error: type(error).__name__.encode())
        responding = asyncio.create_task(exchange.respond(response))
        await asyncio.sleep(0.01)
        exchange.flow.cancel(ClientStalled(1.0))
        await responding
        return exchange

    exchange = run(scenario)
    assert exchange.transport.writes == []
    assert exchange.bodies == [(b"ClientStalled", False)]


def test_an_error_is_the_last_event():
    async def failing():
        yield b"one"
        raise ApiError(500, "model_error", "the model failed")

    async def scenario():
        exchange = Exchange()
        await exchange.respond(EventStreamResponse(failing(), lambda error: error.code.encode()))
        return exchange

    exchange = run(scenario)
    assert exchange.transport.writes == [b"3\r\none\r\n", b"b\r\nmodel_error\r\n"]
    assert exchange.bodies == [(b"", False)]


def test_an_error_without_an_event_is_raised():
    async def failing():
        yield b"one"
        raise asyncio.CancelledError

    async def scenario():
        exchange = Exchange()
        with pytest.raises(asyncio.CancelledError):
            await exchange.respond(EventStreamResponse(failing(), lambda _: None))
        return exchange

    assert run(scenario).bodies == []


# ---------------------------------------------------------------- over a connection
def request(body, version="1.1", *headers):
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: x", "X-Request-Id: one", *headers]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def read_until(connection, end):
    data = b""
    while not data.endswith(end):
        received = connection.recv(1 << 16)
        assert received, data
        data += received
    return data


def unframe(body):
    """The content of a chunked body."""
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            return content
        content, body = content + body[: int(size, 16)], body[int(size, 16) + 2 :]


def test_the_bytes_are_those_of_the_path_through_asgi(server):
    body = json.dumps(chat_body('text "quoted" \N{BLACK HEART SUIT}', stream=True)).encode()
    with open_socket(server, request(body, "1.1", "Connection: close")) as connection:
        head, _, framed = read_until(connection, b"0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    with open_socket(server, request(body, "1.0")) as connection:
        head, _, plain = read_until(connection, b"[DONE]\n\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    created = re.compile(rb'"created":\d+')
    assert created.sub(b"", unframe(framed)) == created.sub(b"", plain)


def test_a_connection_is_kept_after_a_stream(server):
    body = json.dumps(chat_body("abc", stream=True)).encode()
    with open_socket(server, request(body)) as connection:
        first = read_until(connection, b"0\r\n\r\n")
        connection.sendall(request(body))
        second = read_until(connection, b"0\r\n\r\n")
    assert first.count(b"HTTP/1.1 200") == second.count(b"HTTP/1.1 200") == 1
    assert b"[DONE]" in second
