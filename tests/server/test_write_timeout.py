"""Write timeout: a client that does not read is cut off and its request ends; a slow reader is served."""

import asyncio
import json
import socket
import time

import msgspec
import numpy as np
import pytest

from mstar.config import HttpLimits
from mstar.server import http_server
from mstar.server.stream_response import StreamResponse
from mstar.server.write_timeout import CancellableFlowControl, ClientStalled, WriteTimer
from tests.server import toy_server
from tests.server.test_protocols import frame, open_socket, open_websocket, read_response

TIMEOUT_S = 0.5
RECEIVE_BUFFER = 4096
SEND_BUFFER = 8192
CHUNKS, CHUNK_VALUES = 100, 10_000
"""4 MB, much more than the buffers hold."""


@pytest.fixture(scope="module")
def server():
    """A server whose connections have small send buffers."""

    def bind_socket(*address):
        listener = http_server.bind_socket(*address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listener

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_server, "bind_socket", bind_socket)
        with toy_server.run_toy_server(limits=HttpLimits(write_timeout_s=TIMEOUT_S)) as started:
            yield started


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_connections(server):
    return server.http_server.server_state.connections


def generate(server):
    """A connection that has asked for 4 MB of audio."""
    sound = np.zeros(CHUNK_VALUES, np.float32)
    array = {"dtype": "float32", "shape": sound.shape, "data": sound.tobytes()}
    body = msgspec.msgpack.encode({"model": "mixer", "request": {"sound": array, "times": CHUNKS}})
    head = "POST /v1/generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/msgpack\r\n"
    head += f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    return open_socket(server, head.encode() + body, receive_buffer=RECEIVE_BUFFER)


def errors(server, code):
    return server.state.metrics.request_errors.labels(code)._value.get()


def test_the_request_of_a_client_that_does_not_read_ends_with_an_error_event(server):
    before = errors(server, "client_stalled")
    with generate(server) as connection:
        wait_until(server.request_stats, 5.0)
        wait_until(lambda: not server.request_stats(), 10.0)
        wait_until(lambda: errors(server, "client_stalled") == before + 1, 5.0)
        response = read_response(connection)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"event: error" in response[-400:]
    assert b'"client_stalled"' in response[-400:]


def test_a_connection_that_is_never_read_is_closed(server):
    with generate(server):
        wait_until(server.request_stats, 5.0)
        wait_until(lambda: not open_connections(server), 10.0)


def test_a_client_that_reads_slowly_is_not_cut_off(server):
    before = errors(server, "client_stalled")
    with generate(server) as connection:
        until = time.monotonic() + 4 * TIMEOUT_S
        while time.monotonic() < until:
            assert connection.recv(RECEIVE_BUFFER)
            time.sleep(TIMEOUT_S / 10)
        assert server.request_stats()
    assert errors(server, "client_stalled") == before
    assert server.wait_until_idle(5.0)


def test_a_websocket_of_a_client_that_does_not_read_is_closed(server):
    with open_websocket(server, receive_buffer=RECEIVE_BUFFER) as connection:
        assert connection.recv(1 << 16)  # the handshake
        text = "x" * 4000
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        for event in ({"type": "conversation.item.create", "item": item}, {"type": "response.create"}):
            connection.sendall(frame(1, json.dumps(event).encode()))
        wait_until(server.request_stats, 5.0)
        wait_until(lambda: not open_connections(server), 20.0)
    assert server.wait_until_idle(5.0)


class Transport:
    """A connection that does nothing."""


def test_a_client_that_reads_again_gets_its_next_response():
    async def scenario():
        flow = CancellableFlowControl(Transport(), Transport())
        flow.pause_writing()
        flow.cancel(ClientStalled(1.0))  # while the handler waits for the model, not for the client
        flow.resume_writing()
        await flow.drain()
        flow.pause_writing()
        waiting = asyncio.create_task(flow.drain())
        await asyncio.sleep(0)
        flow.cancel(ClientStalled(1.0))
        with pytest.raises(ClientStalled):
            await waiting

    asyncio.run(scenario())


def test_a_client_that_stalls_at_the_end_of_a_stream_is_reported():
    async def chunks():
        yield b"all"

    ends = []

    async def send(message):
        if not message.get("more_body", True):
            ends.append(message)
            if len(ends) == 1:
                raise ClientStalled(1.0)

    with pytest.raises(ClientStalled):
        asyncio.run(StreamResponse(chunks(), "audio/wav", {})({"type": "http"}, None, send))
    assert len(ends) == 1


def test_an_unread_stream_stops_after_few_outputs():
    """The kernel would otherwise buffer 4 MB of it, which are 19,000 outputs."""
    outputs, text = 16_000, "x" * 16_000
    with toy_server.run_toy_server() as server:
        delivered = server.state.metrics.emissions.labels("parrot", "Text")._value
        body = json.dumps(toy_server.chat_body(text, stream=True, max_tokens=outputs)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with open_socket(server, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body):
            wait_until(lambda: delivered.get() > 100, 10.0)
            before = 0
            while before < (before := delivered.get()) < outputs:
                time.sleep(0.5)
        assert before < outputs / 4


def test_another_front_end_at_a_unix_socket_is_not_cut_off():
    stalls = []

    class StubTransport:
        def get_extra_info(self, name):
            assert name == "socket"
            return own

    async def run():
        timer = WriteTimer(StubTransport(), 0.04, lambda: stalls.append("stalled"))
        timer.start()
        await asyncio.sleep(0.1)
        timer.stop()

    own, other = socket.socketpair(socket.AF_UNIX)
    with own, other:
        asyncio.run(run())
    assert stalls == []
