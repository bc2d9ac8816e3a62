"""Realtime sessions move between two servers: nothing is lost or doubled, and only one server has each of them."""

import asyncio
import json
import random
import socket
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mstar.server.realtime.backup import session_backup
from mstar.server.realtime.backup.connections import PATH
from tests.server.model_server import BACKUP_KEY, serve_models
from tests.server.realtime.test_resume import SPEECH, TEXT, Client, receive_until, wait_until
from tests.server.realtime.test_session import QUIET, VOICE, to_base64_pcm
from tests.server.toy_multi_turn_model import MultiTurnTalker
from tests.server.toy_narrator import Narrator
from tests.server.toy_voice_model import Talker

LONG = "the quick brown fox jumps over the lazy dog and runs away again"
TURNS = {
    "type": "realtime",
    "output_modalities": ["text"],
    "audio": {"input": {"turn_detection": {"type": "server_vad"}}},
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def two_servers():
    """Two servers that keep copies for each other."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serve_models(
                    {"talker": Talker(), "narrator": Narrator(), "listener": MultiTurnTalker()},
                    port=port,
                    backup_urls=[url for url in urls if not url.endswith(str(port))],
                )
            )
            for port in ports
        ]
        deadline = time.monotonic() + 20
        while not all(is_backed_up(server) for server in servers):  # the first one started before the second
            assert time.monotonic() < deadline, "the servers do not connect to each other"
            time.sleep(0.01)
        yield servers


def is_backed_up(server):
    return all(each.is_connected for each in server.state.session_backups.connections._connections)


@pytest.fixture(scope="module")
def servers():
    with two_servers() as started:
        yield started


class Caller(Client):
    """Client that can come back at another server."""

    def __init__(self, server, model="talker"):
        super().__init__(server.url)
        self.model = model
        self.sockets = []

    async def connect(self, **params):
        await super().connect(**params)
        self.sockets.append(self.socket)

    async def close(self):
        """Close all connections: Python warns of those that are open when their event loop ends."""
        await self.socket.close()
        for one in self.sockets:
            one.transport.abort()
            await one.wait_closed()

    async def open(self):
        await self.connect(resume_timeout_s=self.resume_timeout_s, model=self.model)
        self.session_id = (await self.receive())["session"]["id"]

    async def resume_at(self, server):
        self.url = f"{server.url.replace('http', 'ws')}/v1/realtime"
        await self.resume()

    async def receive(self):
        """The next event. A server that is not told yet that it has lost the session closes the connection."""
        while True:
            try:
                return await super().receive()
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.reason != "session_moved":
                    raise
                await self.resume()


def kinds(client):
    return [event["type"] for event in client.events]


def deltas(client, kind):
    return [event["delta"] for event in client.events if event["type"] == f"response.{kind}.delta"]


async def receive_to_the_end(client):
    while True:
        client.events.append(json.loads(await client.socket.recv()))


def has_copy(server, client):
    return server.state.session_backups.copies._copies.get(("", client.session_id)) is not None


async def undisturbed(server, model, text, settings):
    client = Caller(server, model)
    await client.open()
    await client.ask(text, settings)
    await receive_until(client, "response.done")
    await client.close()
    return client


@pytest.mark.parametrize(("model", "settings"), [("talker", TEXT), ("talker", SPEECH), ("narrator", SPEECH)])
def test_a_response_moves_at_every_event(servers, model, settings):
    """Random moves between the servers, also two at once: the events are those of the undisturbed run."""
    chosen = random.Random(11)

    async def run():
        expected = await undisturbed(servers[0], model, LONG, settings)
        client, at = Caller(servers[0], model), 0
        await client.open()
        await client.ask(LONG, settings)
        moves = 0
        while client.events[-1]["type"] != "response.done":
            await client.receive()
            if chosen.random() < 0.1 and moves < 12:
                client.lose_connection()
                at, moves = 1 - at, moves + 1
                await client.resume_at(servers[at])
        assert moves >= 3
        assert sorted(kinds(client)) == sorted(kinds(expected)), "text and audio are interleaved by chance"
        ids = [event["event_id"] for event in client.events]
        assert len({*ids}) == len(ids)
        for kind in ("output_text", "output_audio_transcript", "output_audio"):
            assert deltas(client, kind) == deltas(expected, kind)
        items = [event["item"] for event in client.events if event["type"] == "conversation.item.done"]
        assert len({item["id"] for item in items}) == 2
        # The conversation goes on at the other server with the same items.
        await client.send("conversation.item.retrieve", item_id=items[-1]["id"])
        await receive_until(client, "conversation.item.retrieved")
        assert client.events[-1]["item"] == items[-1]
        await client.close()

    asyncio.run(run())
    assert all(server.wait_until_idle() for server in servers)
    for server in servers:
        assert not server.state.realtime_sessions._sessions


def test_speech_of_the_user_continues_at_the_other_server(servers):
    """The move is in the middle of a sentence: it becomes one item, which has all of its audio."""

    async def run():
        client = Caller(servers[0])
        await client.open()
        await client.send("session.update", session=TURNS)
        audio = np.concatenate([QUIET[:9600], VOICE, VOICE, QUIET])
        chunks = [audio[start : start + 960] for start in range(0, len(audio), 960)]
        for number, chunk in enumerate(chunks):
            await client.send("input_audio_buffer.append", audio=to_base64_pcm(chunk))
            if number == 30:
                await receive_until(client, "input_audio_buffer.speech_started")
                client.lose_connection()
                await client.resume_at(servers[1])
        await receive_until(client, "response.done")
        assert kinds(client).count("input_audio_buffer.speech_started") == 1
        assert kinds(client).count("input_audio_buffer.committed") == 1
        saved = await servers[1].state.realtime_sessions.find("", client.session_id).save()
        (user, _) = saved.items
        assert len(user.parts[0].pcm) >= 2 * 2 * len(VOICE), "all of the speech"
        await client.close()

    asyncio.run(run())


def test_a_drain_moves_the_sessions():
    with two_servers() as servers:

        async def run():
            expected = await undisturbed(servers[1], "talker", LONG, SPEECH)
            clients = [Caller(servers[0]) for _ in range(5)]
            for client in clients:
                await client.open()
                await client.ask(LONG, SPEECH)
                await receive_until(client, "response.output_audio.delta")
            servers[0].drain()
            for client in clients:
                with pytest.raises(ConnectionClosed) as closed:
                    await receive_to_the_end(client)
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "session_moved")
                await client.resume_at(servers[1])
            for client in clients:
                if "response.done" not in kinds(client):  # on a slow machine it was done before the drain
                    await receive_until(client, "response.done")
                assert deltas(client, "output_audio") == deltas(expected, "output_audio")
                await client.close()

        asyncio.run(run())


def test_a_server_that_lost_the_session_sends_nothing_more(servers):
    """The client comes back elsewhere while its first connection seems to work: that one ends, without an event."""

    async def run():
        client = Caller(servers[0], "listener")
        await client.open()
        await client.ask("hello", TEXT)
        await receive_until(client, "response.done")
        first = client.socket
        await client.resume_at(servers[1])
        with pytest.raises(ConnectionClosed) as closed:
            await first.recv()
        assert closed.value.rcvd.reason == "session_moved"
        await client.ask("more", TEXT)
        await receive_until(client, "response.done")
        assert len({event["event_id"] for event in client.events}) == len(client.events)
        await client.close()

    asyncio.run(run())


def test_copies_follow_their_sessions(servers):
    async def run():
        client = Caller(servers[0])
        await client.open()
        await client.ask("hello", TEXT)
        await receive_until(client, "response.done")
        assert has_copy(servers[1], client)
        assert not has_copy(servers[0], client)
        assert servers[0].state.session_backups.connections.stored >= 1
        await client.close()
        await wait_until(lambda: not has_copy(servers[1], client))

    asyncio.run(run())


def test_silence_is_copied_now_and_then(servers):
    """Messages without an event are not sent again forever after a move."""

    async def run():
        client = Caller(servers[0])
        await client.open()
        for _ in range(session_backup.MAX_UNSAVED_STEPS + 10):
            await client.send("input_audio_buffer.append", audio=to_base64_pcm(QUIET[:480]))
        await client.send("input_audio_buffer.clear")
        await receive_until(client, "input_audio_buffer.cleared")
        await client.resume_at(servers[1])
        await client.send("input_audio_buffer.clear")
        await receive_until(client, "input_audio_buffer.cleared")
        assert kinds(client).count("input_audio_buffer.cleared") == 2
        await client.close()

    asyncio.run(run())


def test_a_session_of_another_key_is_not_taken(servers):
    async def run():
        client = Caller(servers[0])
        await client.open()
        for params in ({"session_id": "sess_unknown"}, {"session_id": client.session_id + "x"}):
            with pytest.raises(InvalidStatus) as failed:
                await Caller(servers[1]).connect(**params)
            assert failed.value.response.status_code == 404
        await client.send("input_audio_buffer.clear")
        await receive_until(client, "input_audio_buffer.cleared")
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}])
def test_the_internal_path_needs_the_key(servers, headers):
    async def run():
        with pytest.raises(InvalidStatus):
            await connect(f"{servers[0].url.replace('http', 'ws')}{PATH}", additional_headers=headers)

    asyncio.run(run())


def test_garbage_with_the_key_ends_the_connection_only(servers):
    async def run():
        headers = {"Authorization": f"Bearer {BACKUP_KEY}"}
        async with connect(f"{servers[0].url.replace('http', 'ws')}{PATH}", additional_headers=headers) as socket_:
            await socket_.send(b"\x00garbage")
            with pytest.raises(ConnectionClosed):
                await socket_.recv()

    asyncio.run(run())
    with servers[0].client() as http:
        assert json.loads(http.get("/v1/models").text)["data"]
