"""Transport of responses: the head and the first bytes of the body are one write, and a head alone is not held."""

import asyncio
import json

import pytest

from mstar.server.response_transport import MAX_JOINED_BYTES, ResponseTransport
from tests.server.test_protocols import open_socket
from tests.server.toy_server import chat_body


class Transport:
    """A connection that keeps what is written to it."""

    def __init__(self):
        self.writes = []

    def write(self, data):
        self.writes.append(data)

    def close(self):
        self.writes.append("closed")

    def is_closing(self):
        return "closed" in self.writes


def writes_of(scenario):
    async def run():
        transport = Transport()
        await scenario(ResponseTransport(transport, asyncio.get_running_loop()))
        return transport.writes

    return asyncio.run(run())


def test_the_head_leaves_with_the_first_bytes_of_the_body():
    async def scenario(responses):
        for _ in range(2):
            for data in (b"head", b"", b"body", b"more"):
                responses.write(data)
            responses.end_response()
        await asyncio.sleep(0)

    assert writes_of(scenario) == [b"headbody", b"more"] * 2


def test_a_head_without_a_body_leaves_at_the_end_of_the_turn():
    async def scenario(responses):
        responses.write(b"head")
        await asyncio.sleep(0)
        responses.write(b"body")

    assert writes_of(scenario) == [b"head", b"body"]


def test_a_head_is_dropped_if_the_client_leaves_in_the_same_turn():
    """uvloop raises if a closed connection is written to, and the log would have an error for each such client."""
    transport = Transport()

    async def scenario():
        responses = ResponseTransport(transport, asyncio.get_running_loop())
        responses.write(b"head")
        transport.close()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert transport.writes == ["closed"]


def test_a_head_without_a_body_leaves_before_the_connection_closes():
    async def scenario(responses):
        responses.write(b"head")
        responses.close()

    assert writes_of(scenario) == [b"head", "closed"]


def test_a_large_body_is_not_copied():
    body = bytes(MAX_JOINED_BYTES + 1)

    async def scenario(responses):
        responses.write(b"head")
        responses.write(body)

    writes = writes_of(scenario)
    assert writes[0] == b"head"
    assert writes[1] is body


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_segment_of_a_response_has_its_head_and_the_start_of_its_body(server, stream):
    body = json.dumps(chat_body("abc", stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    with open_socket(server, f"{head}Content-Type: application/json\r\n\r\n".encode() + body) as connection:
        received = connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200")
    assert b'"object":"chat.completion' in received
