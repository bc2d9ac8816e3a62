"""A realtime session outlives its connection: nothing is lost or doubled, and only its own client can resume it."""

import asyncio
import json
import random
import socket
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlencode

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mstar.config import HttpLimits
from mstar.server.access.api_keys import ApiKeys
from mstar.server.errors import ApiError
from mstar.server.realtime import event_log
from mstar.server.realtime.event_log import EventLog
from mstar.server.realtime.open_sessions import OpenSession
from tests.server.model_server import serve_models
from tests.server.realtime.test_session import VOICE, to_base64_pcm
from tests.server.toy_narrator import Narrator
from tests.server.toy_voice_model import Talker

TEXT = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
SPEECH = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
CLIENTS = 60


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"talker": Talker()}, limits=HttpLimits(max_realtime_sessions=2 * CLIENTS)) as started:
        yield started


class Client:
    """Client of one session that comes back after each loss of its connection."""

    def __init__(self, url, key="", resume_timeout_s=30):
        self.url = f"{url.replace('http', 'ws')}/v1/realtime"
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.resume_timeout_s = resume_timeout_s
        self.session_id = ""
        self.sent = []
        """Every event of the client, to send those again that have not arrived."""
        self.events = []
        """Every event of the server but `session.resumed`."""
        self.socket = None
        self.connect_options = {}

    async def connect(self, **params):
        self.socket = await connect(
            f"{self.url}?{urlencode(params)}", additional_headers=self.headers, **self.connect_options
        )

    async def open(self):
        await self.connect(resume_timeout_s=self.resume_timeout_s)
        self.session_id = (await self.receive())["session"]["id"]

    async def resume(self):
        last = self.events[-1]["event_id"] if self.events else ""
        await self.connect(session_id=self.session_id, last_event_id=last)
        resumed = json.loads(await self.socket.recv())
        assert (resumed["type"], resumed["session"]["id"]) == ("session.resumed", self.session_id)
        for message in self.sent[resumed["received_events"] :]:
            await self.socket.send(message)

    async def send(self, kind, **fields):
        self.sent.append(json.dumps({"type": kind, **fields}))
        with suppress(ConnectionClosed):  # `resume` sends it again
            await self.socket.send(self.sent[-1])

    async def receive(self):
        self.events.append(json.loads(await self.socket.recv()))
        return self.events[-1]

    async def ask(self, text, settings=TEXT):
        await self.send("session.update", session=settings)
        part = {"type": "input_text", "text": text}
        await self.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
        await self.send("response.create")

    def lose_connection(self):
        self.socket.transport.abort()

    def answer(self):
        """The text of all deltas."""
        return "".join(one["delta"] for one in self.events if one["type"] == "response.output_text.delta")


@contextmanager
def small_receive_buffer(client):
    """The next connection takes little of what it is sent before the client reads it."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.connect(("127.0.0.1", int(client.url.split(":")[2].partition("/")[0])))
        end.setblocking(False)
        client.connect_options = {"sock": end, "max_queue": 1}
        yield
        client.connect_options = {}


async def wait_until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def only_session(model_server):
    """Outbox of the only resumable session."""
    (opened,) = model_server.state.realtime_sessions._sessions.values()
    return opened.connection


async def receive_until(client, kind):
    while (await client.receive())["type"] != kind:
        pass


async def converse(client, text, rng, losses=3):
    """Ask, and lose the connection at random moments."""
    await client.open()
    asking = asyncio.create_task(client.ask(text))
    for _ in range(losses):
        for _ in range(rng.randrange(8)):
            await client.receive()
        client.lose_connection()
        await asking
        await client.resume()
    await receive_until(client, "response.done")
    await client.socket.close()


def test_clients_that_lose_their_connections_miss_nothing(model_server):
    texts = [f"answer {number} of {CLIENTS}" for number in range(CLIENTS)]
    clients = [Client(model_server.url) for _ in texts]

    async def run():
        await asyncio.gather(
            *(converse(one, text, random.Random(text)) for one, text in zip(clients, texts, strict=True))
        )

    asyncio.run(run())
    for client, text in zip(clients, texts, strict=True):
        assert client.answer() == text
        kinds = [event["type"] for event in client.events]
        assert (kinds.count("session.updated"), kinds.count("response.created"), kinds.count("response.done")) == (
            1,
            1,
            1,
        )
        assert len({event["event_id"] for event in client.events}) == len(client.events)
    assert model_server.wait_until_idle(), "a client that closes its connection ends its session"
    assert not model_server.state.memory_budget.held_bytes


def test_a_response_pauses_while_nobody_reads_it(model_server, monkeypatch):
    monkeypatch.setattr(event_log, "MAX_KEPT_BYTES", 4096)
    text = "slow" + "x" * 60  # so that few events are on their way when the connection is lost

    async def run():
        client = Client(model_server.url)
        await client.open()
        await client.ask(text)
        await receive_until(client, "response.created")
        client.lose_connection()
        await asyncio.sleep(1.0)
        sizes = [only_session(model_server)._log._unsent_bytes]
        await client.resume()
        await receive_until(client, "response.done")
        await client.socket.close()
        return client.answer(), sizes

    answer, sizes = asyncio.run(run())
    assert answer == text
    assert len(sizes) == 1
    assert 4096 < sizes[0] < 2 * 4096


def test_a_session_ends_if_its_client_does_not_come_back(model_server):
    async def run():
        client = Client(model_server.url, resume_timeout_s=0.2)
        await client.open()
        await client.ask("slow" + "x" * 1000)
        client.lose_connection()
        await asyncio.sleep(1.0)
        with pytest.raises(InvalidStatus) as refused:
            await client.resume()
        return refused.value.response

    response = asyncio.run(run())
    assert response.status_code == 404
    assert b"open a new session" in response.body
    assert model_server.wait_until_idle()


def test_a_new_connection_replaces_one_that_seems_to_be_alive(model_server):
    async def run():
        client = Client(model_server.url)
        await client.open()
        old = client.socket
        await client.resume()
        with pytest.raises(ConnectionClosed) as closed:
            await old.recv()
        await client.ask("both")
        await receive_until(client, "response.done")
        await client.socket.close()
        return closed.value.rcvd.code, client.answer()

    assert asyncio.run(run()) == (4000, "both")


def is_stalled(outbox):
    """Whether events wait for a connection that takes no more."""
    return outbox._log._unsent_bytes > 0


def test_a_connection_that_takes_nothing_any_more_does_not_hold_up_the_next_one(model_server):
    async def run():
        client = Client(model_server.url)
        with small_receive_buffer(client):
            await client.open()
            await client.ask("x" * 1000, SPEECH)
            await wait_until(lambda: is_stalled(only_session(model_server)))
            client.connect_options, old = {}, client.socket
            async with asyncio.timeout(5):
                await client.resume()
            await receive_until(client, "response.done")
            old.transport.abort()
            await client.socket.close()
        assert len({event["event_id"] for event in client.events}) == len(client.events)
        return [len(one["delta"]) for one in client.events if one["type"] == "response.output_audio.delta"]

    deltas = asyncio.run(run())
    assert len(deltas) == 1000
    assert model_server.wait_until_idle()


def test_a_response_that_is_cancelled_while_its_client_is_slow_loses_no_event(model_server):
    async def run():
        client = Client(model_server.url)
        with small_receive_buffer(client):
            await client.open()
            await client.ask("x" * 1000, SPEECH)
            await wait_until(lambda: is_stalled(only_session(model_server)))
            await client.send("response.cancel")
            await receive_until(client, "response.done")
            await client.socket.close()
        transcript = client.events[-1]["response"]["output"][0]["content"][0]["transcript"]
        deltas = [one["delta"] for one in client.events if one["type"] == "response.output_audio_transcript.delta"]
        return "".join(deltas), transcript

    deltas, transcript = asyncio.run(run())
    assert deltas == transcript
    assert 0 < len(transcript) < 1000


def test_a_session_that_ends_during_the_handshake_is_not_resumed(model_server, monkeypatch):
    async def run():
        client = Client(model_server.url)
        await client.open()
        ended = only_session(model_server)
        opened = OpenSession("talker", ended, None)
        await client.socket.close()
        await wait_until(lambda: ended._is_closed)
        monkeypatch.setattr(model_server.state.realtime_sessions, "find", lambda *_: opened)
        await client.connect(session_id=client.session_id, last_event_id=client.events[-1]["event_id"])
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.recv()
        return closed.value.rcvd

    assert asyncio.run(run()).reason == "not_found"


def test_a_drain_waits_for_clients_that_come_back():
    def sessions():
        return {labels["state"]: value for labels, value in scrape()}

    def scrape():
        (family,) = state.metrics.realtime_sessions.collect()
        return [(sample.labels, sample.value) for sample in family.samples]

    async def run(server):
        client = Client(server.url)
        await client.open()
        await client.ask("slow" + "x" * 30)
        assert sessions() == {"connected": 1, "lost": 0}
        client.lose_connection()
        await wait_until(lambda: sessions() == {"connected": 0, "lost": 1})
        outbox = only_session(server)
        await wait_until(lambda: b"response.done" in outbox._log._events[-1][1])
        server.drain()
        await asyncio.sleep(0.2)
        await client.resume()
        await receive_until(client, "error")
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.recv()
        return client, closed.value.rcvd.code

    with serve_models({"talker": Talker()}, drain_timeout_s=20) as server:
        state = server.state
        client, code = asyncio.run(run(server))
        assert server.wait_until_idle(2), "the drain is over with the session"
    assert client.answer() == "slow" + "x" * 30
    assert (client.events[-1]["error"]["code"], code) == ("shutting_down", 1012)
    assert state.metrics.realtime_resumes._value.get() == 1


def test_what_was_not_sent_counts_as_not_played():
    async def run(url):
        client, outage_s = Client(url), 1.0
        await client.open()
        started_at = time.monotonic()
        await client.ask("five " * 200, {"type": "realtime"})
        await receive_until(client, "response.done")
        client.lose_connection()
        await asyncio.sleep(outage_s)
        await client.resume()
        await client.send("input_audio_buffer.append", audio=to_base64_pcm(VOICE))
        await receive_until(client, "conversation.item.truncated")
        elapsed_s = time.monotonic() - started_at
        await client.socket.close()
        return client.events[-1]["audio_end_ms"], 1000 * (elapsed_s - outage_s)

    with serve_models({"narrator": Narrator()}) as started:
        played_ms, connected_ms = asyncio.run(run(started.url))
    assert 0 < played_ms <= connected_ms + 50, "the loss is noticed a moment after it"


@pytest.mark.parametrize(
    ("params", "status", "problem"),
    [
        ({"session_id": "sess_unknown"}, 404, b"session_id: 'sess_unknown' has ended"),
        ({"resume_timeout_s": "1e9"}, 400, b"send seconds from 0 to 300"),
        ({"resume_timeout_s": "nan"}, 400, b"send seconds from 0 to 300"),
    ],
)
def test_invalid_parameters_are_refused_before_the_handshake(model_server, params, status, problem):
    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(Client(model_server.url).connect(**params))
    assert refused.value.response.status_code == status
    assert problem in refused.value.response.body


def test_events_that_are_not_kept_any_more_cannot_be_resumed(model_server):
    async def run():
        client = Client(model_server.url)
        await client.open()
        with pytest.raises(InvalidStatus) as refused:
            await client.connect(session_id=client.session_id, last_event_id="event_unknown")
        await client.ask("still there")
        await receive_until(client, "response.done")
        await client.socket.close()
        return refused.value.response.status_code, client.answer()

    assert asyncio.run(run()) == (400, "still there")


def test_a_session_without_the_parameter_ends_with_its_connection(model_server):
    async def run():
        client = Client(model_server.url, resume_timeout_s=0)
        await client.open()
        client.lose_connection()
        await asyncio.sleep(0.2)
        with pytest.raises(InvalidStatus):
            await client.resume()

    asyncio.run(run())


def test_only_the_key_of_a_session_resumes_it():
    async def run(url):
        mine, theirs = Client(url, "a"), Client(url, "b")
        await mine.open()
        with pytest.raises(InvalidStatus) as refused:
            await theirs.connect(session_id=mine.session_id)
        await mine.resume()
        await mine.socket.close()
        return refused.value.response.status_code

    with serve_models({"talker": Talker()}, keys=ApiKeys(["a", "b"])) as started:
        assert asyncio.run(run(started.url)) == 404


def test_the_log_keeps_the_latest_events_and_all_that_wait(monkeypatch):
    def take():
        message = log.unsent
        if message is not None:
            log.advance()
        return message

    monkeypatch.setattr(event_log, "MAX_KEPT_BYTES", 25)
    log, events = EventLog(), [b"event %4d" % number for number in range(5)]
    for number, event in enumerate(events[:4]):
        assert log.is_full == (number == 3)
        log.append(f"e{number}", event)
    assert [take() for _ in range(5)] == [*events[:4], None]
    assert not log.is_full
    log.append("e4", events[4])
    assert [log.index_after(known) for known in ("e1", "e2", "e3", "e4")] == [0, 1, 2, 3]
    for unknown in ("", "e0"):
        with pytest.raises(ApiError, match="is not among the latest events"):
            log.index_after(unknown)
    log.rewind(log.index_after("e1"))
    assert log.is_full
    assert [take() for _ in range(4)] == [*events[2:], None]
