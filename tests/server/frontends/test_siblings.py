"""Requests to other front ends: owners of ids, forwarding over Unix sockets, merged answers, lost owners."""

import asyncio
import contextlib

import pytest

from mstar.server.errors import ApiError
from mstar.server.frontends.siblings import SIBLING_HEADER, Siblings
from mstar.wire.message import Peer


def scope(path="/v1/requests", method="GET", headers=(), query=b""):
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"host", b"localhost"), *headers],
    }


@pytest.fixture
def siblings(tmp_path):
    return Siblings(tmp_path, 1, 3, Peer("launcher", 0))


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/v1/responses/resp_f2_ab", 2),
        ("/v1/sessions/sess_f2_ab", 2),
        ("/v1/responses/resp_f3_ab/cancel", 3),
        ("/v1/videos/video_f2_ab/content", 2),
        ("/v1/worlds/world_f2_ab/step", 2),
        ("/v1/worlds/world_f1_ab", None),  # its own
        ("/v1/worlds/world_f4_ab", None),  # there are three
        ("/v1/worlds/world_ab", None),
        ("/v1/videos", None),
        ("/v1/requests/video_f2_ab/trace", None),  # a request id is the choice of a client
        ("/v1/responses/resp_f02_ab", None),
    ],
)
def test_an_id_names_its_front_end(siblings, path, owner):
    assert siblings.owner_of_request({"type": "http", "path": path}) == owner


@pytest.mark.parametrize(
    ("query", "owner"),
    [
        (b"session_id=sess_f2_ab&last_event_id=e", 2),
        (b"session_id=sess_f1_ab", None),
        (b"model=sess_f2_ab", None),
    ],
)
def test_a_session_id_names_the_front_end_of_a_websocket(siblings, query, owner):
    assert siblings.owner_of_request({"type": "websocket", "query_string": query}) == owner


class StubFrontend:
    """Reads one request of each connection and sends a prepared response."""

    def __init__(self, response):
        self.response = response
        self.received = []

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
        self.received.append(head + body)
        writer.write(self.response)
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def listening(siblings, number, content, status="200 OK"):
    """A stub of a front end."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nX-Request-Id: r\r\nDate: now\r\n\r\n"
    stub = StubFrontend(head.encode() + content)
    server = await asyncio.start_unix_server(stub.serve, siblings._socket(number))
    async with server:
        yield stub


async def forward(siblings, owner, sent_scope, body=b""):
    """The messages that a client gets."""
    sent, incoming = [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if incoming:
            return incoming.pop()
        return await asyncio.Future()

    async def send(message):
        sent.append(message)

    await siblings.forward(owner, sent_scope, receive, send)
    return sent


def test_a_request_and_its_response_are_forwarded(siblings):
    async def run():
        async with listening(siblings, 2, b"done") as stub:
            headers = [(b"content-length", b"3"), (b"authorization", b"Bearer k"), (b"connection", b"keep-alive")]
            sent_scope = scope("/v1/worlds/world_f2_a/step", "POST", headers, b"a=1")
            return stub, await forward(siblings, 2, sent_scope, b"abc")

    stub, (start, *rest) = asyncio.run(run())
    (received,) = stub.received
    assert received.startswith(b"POST /v1/worlds/world_f2_a/step?a=1 HTTP/1.1\r\n")
    assert received.endswith(b"\r\n\r\nabc")
    assert b"Bearer k" in received
    assert b"keep-alive" not in received
    assert start["status"] == 200
    assert dict(start["headers"]) == {b"content-length": b"4", b"x-request-id": b"r"}
    assert b"".join(message["body"] for message in rest) == b"done"
    assert not rest[-1]["more_body"]


def test_the_objects_of_a_front_end_that_has_stopped_do_not_exist(siblings):
    with pytest.raises(ApiError, match="has stopped") as raised:
        asyncio.run(forward(siblings, 2, scope("/v1/videos/video_f2_a")))
    assert raised.value.status == 404


def test_a_front_end_that_dies_before_its_response_is_reported_as_stopped(siblings):
    async def run():
        async with listening(siblings, 2, b"") as stub:
            stub.response = b""
            await forward(siblings, 2, scope("/v1/videos/video_f2_a"))

    with pytest.raises(ApiError, match="has stopped"):
        asyncio.run(run())


def test_a_rejection_is_forwarded_before_the_body_is_complete(siblings):
    incoming = [{"type": "http.request", "body": b"a", "more_body": True}]
    sent = []

    async def reject(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    async def receive():
        return incoming.pop() if incoming else await asyncio.Future()

    async def send(message):
        sent.append(message)

    async def run():
        async with await asyncio.start_unix_server(reject, siblings._socket(2)):
            headers = [(b"content-length", b"1000000")]
            await siblings.forward(2, scope("/v1/worlds/world_f2_a/step", "POST", headers), receive, send)

    asyncio.run(asyncio.wait_for(run(), 5))
    assert sent[0]["status"] == 413
    assert not sent[-1]["more_body"]


def test_a_response_that_is_cut_off_stays_incomplete(siblings):
    async def run():
        async with listening(siblings, 2, b"done") as stub:
            stub.response = stub.response[:-2]
            return await forward(siblings, 2, scope("/v1/videos/video_f2_a/content"))

    assert asyncio.run(run())[-1]["more_body"]


def test_a_client_that_leaves_ends_the_request_at_the_owner(siblings):
    closed = []

    async def hang(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        closed.append(await reader.read())
        writer.close()

    async def receive():
        return messages.pop()

    messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]

    async def run():
        async with await asyncio.start_unix_server(hang, siblings._socket(2)):
            with pytest.raises(ApiError):
                await siblings.forward(2, scope("/v1/videos/video_f2_a"), receive, None)
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(), 5))
    assert closed == [b""]


def test_lists_of_all_front_ends_are_merged_and_each_is_asked_once(siblings):
    async def run():
        async with listening(siblings, 2, b'{"data": [{"id": 1}]}') as stub, listening(siblings, 3, b"{}", "429 No"):
            items = await siblings.merge_lists(scope())
            repeated = await siblings.merge_lists(scope(headers=[(SIBLING_HEADER, b"3")]))
            return stub, items, repeated

    stub, items, repeated = asyncio.run(run())
    assert items == [{"id": 1}]
    assert repeated == []
    assert b"\r\nmstar-front-end: 1\r\n" in stub.received[0]


def test_the_front_end_that_has_a_request_answers(siblings):
    async def run():
        async with listening(siblings, 2, b"{}", "429 No"), listening(siblings, 3, b'{"a": 1}'):
            response = await siblings.find_elsewhere(scope("/v1/requests/x/trace"))
        return response, await siblings.find_elsewhere(scope("/v1/requests/x/trace"))

    response, gone = asyncio.run(run())
    assert (response.status_code, response.body) == (200, b'{"a": 1}')
    assert gone is None
