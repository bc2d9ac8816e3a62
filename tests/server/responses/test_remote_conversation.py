"""Conversations of another front end: pages of input items, an owner that has stopped, and one that is busy."""

import asyncio

import msgspec
import pytest

from mstar.server.errors import ApiError
from mstar.server.frontends import siblings as siblings_module
from mstar.server.frontends.siblings import Siblings
from mstar.server.responses.remote_conversation import read_conversation
from mstar.wire.message import Peer

ID = "resp_f2_ab"
PAGES = {
    f"/v1/responses/{ID}": {"status": "completed", "output": [{"id": "c"}]},
    f"/v1/responses/{ID}/input_items?order=asc&limit=100": {"data": [{"id": "a"}], "has_more": True, "last_id": "a"},
    f"/v1/responses/{ID}/input_items?order=asc&limit=100&after=a": {"data": [{"id": "b"}], "has_more": False},
}
SCOPE = {"type": "http", "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer k")]}


def read(directory, status="200 OK", pages=PAGES):
    """Read the conversation from a stub of front end 2; an empty status: it does not answer."""

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert "authorization: Bearer k" in head
        body = msgspec.json.encode(pages[head.split()[1]])
        if status:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        else:
            await reader.read()
        writer.close()

    async def run():
        siblings = Siblings(directory, 1, 2, Peer("launcher", 0))
        async with await asyncio.start_unix_server(serve, siblings._socket(2)):
            try:
                return await read_conversation(siblings, 2, SCOPE, ID)
            finally:
                await asyncio.sleep(0.02)  # the stub closes its connection

    return asyncio.run(run())


def test_all_pages_and_the_output_are_read(tmp_path):
    content, items = read(tmp_path)
    assert content["status"] == "completed"
    assert [item["id"] for item in items] == ["a", "b", "c"]


def test_an_owner_without_the_response_or_that_has_stopped_has_no_conversation(tmp_path):
    assert read(tmp_path, "404 Not Found") == (None, [])
    stopped = read_conversation(Siblings(tmp_path, 1, 3, Peer("launcher", 0)), 3, SCOPE, ID)
    assert asyncio.run(stopped) == (None, [])


@pytest.mark.parametrize("status", ["429 Too Many Requests", ""])
def test_an_owner_that_is_busy_can_be_asked_again(tmp_path, monkeypatch, status):
    monkeypatch.setattr(siblings_module, "FETCH_TIMEOUT_S", 0.05)
    with pytest.raises(ApiError, match="front end 2, which has the previous response, is busy") as raised:
        read(tmp_path, status)
    assert (raised.value.status, raised.value.code) == (503, "unavailable")
