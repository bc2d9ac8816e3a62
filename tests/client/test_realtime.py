"""Realtime connections of the client: clients that lose their networks at random get what undisturbed ones get."""

import asyncio
import base64
import json
import random
import re
import signal
import threading
import time
from pathlib import Path

import httpx2
import pytest

from mstar.client import AsyncClient, Client, NotFound, ServerUnreachable, SessionEnded
from mstar.client import realtime as client_realtime
from mstar.client.realtime import SessionLog
from tests.cli.test_serve import start_server, wait_ready
from tests.client.cutting_proxy import WAYS, cut_connections
from tests.client.proxy import run_proxy
from tests.server.model_server import serve_models
from tests.server.toy_voice_model import Talker

TALKER = Path(__file__).parents[1] / "server" / "toy_voice_model.py"
KEY = "k"
TURNS = 2
RESUME_TIMEOUT_S = 20
IDS = re.compile(r'"((?:event|item|resp|sess)_[0-9a-f]{24})"')
SETTINGS = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}


@pytest.fixture(scope="module")
def talker():
    with serve_models({"talker": Talker()}) as started:
        yield started


def user_message(text):
    part = {"type": "input_text", "text": text}
    return {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [part]}}


async def converse(url, text):
    """Two turns of speech; every event."""
    events = []
    async with (
        AsyncClient(url, KEY) as client,
        client.realtime("talker", resume_timeout_s=RESUME_TIMEOUT_S) as call,
    ):
        await call.send({"type": "session.update", "session": SETTINGS})
        for turn in range(TURNS):
            await call.send(user_message(f"{text}/{turn}"))
            await call.send({"type": "response.create"})
            async for event in call:
                events.append(event)
                assert event["type"] != "error", event
                if event["type"] == "response.done":
                    break
    return events


def without_ids(events):
    """The events with their ids replaced by the order in which these occur."""
    numbers = {}

    def number(match):
        return f'"{match[1].partition("_")[0]}_{numbers.setdefault(match[1], len(numbers))}"'

    return IDS.sub(number, json.dumps(events))


def spoken(events):
    """Text and sound of all responses."""
    text = "".join(one["delta"] for one in events if one["type"] == "response.output_audio_transcript.delta")
    chunks = [base64.b64decode(one["delta"]) for one in events if one["type"] == "response.output_audio.delta"]
    return text, b"".join(chunks)


async def converse_with_cuts(port, text, rng):
    cuts = rng.randint(2, 5)
    async with cut_connections(port, rng, cuts, 20_000) as (proxy, url):
        events = await converse(url, text)
    return events, proxy.ways


def metric(url, name):
    lines = httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.slow
def test_clients_that_are_cut_at_random_get_what_undisturbed_ones_get():
    check_clients_that_are_cut(30)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_hundred_clients_that_are_cut_at_random_get_what_undisturbed_ones_get():
    check_clients_that_are_cut(200)


def check_clients_that_are_cut(count):
    texts = [f"answer {number}" for number in range(count)]

    async def undisturbed(url):
        return await asyncio.gather(*(converse(url, text) for text in texts))

    async def disturbed(port):
        return await asyncio.gather(*(converse_with_cuts(port, text, random.Random(text)) for text in texts))

    limits = ("--max-realtime-sessions", str(2 * count))  # one that is cut before it has its id opens another one
    with start_server(f"{TALKER}:Talker", "--name", "talker", "--api-key", KEY, *limits) as (process, url):
        wait_ready(process)
        expected = asyncio.run(undisturbed(url))
        results = asyncio.run(disturbed(int(url.rpartition(":")[2])))
        ways = [way for _, cut in results for way in cut]
        for (events, _), undisturbed_events, text in zip(results, expected, texts, strict=True):
            assert len({event["event_id"] for event in events}) == len(events), "no event twice"
            assert spoken(events)[0] == "".join(f"{text}/{turn}" for turn in range(TURNS))
            assert spoken(events) == spoken(undisturbed_events)
            assert without_ids(events) == without_ids(undisturbed_events)
        assert len(ways) > 2 * count
        assert {*ways} == {*WAYS}
        assert metric(url, "mstar_realtime_resumes_total") > count
        deadline = time.monotonic() + RESUME_TIMEOUT_S + 5
        while metric(url, "mstar_realtime_sessions{") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not metric(url, "mstar_realtime_sessions{"), "every session has ended with its client"


def test_a_lost_connection_is_resumed_in_threads(talker):
    with run_proxy(talker.url, 4000, 9000) as proxy, Client(proxy.url) as client, client.realtime("talker") as call:
        call.send({"type": "session.update", "session": SETTINGS})
        call.send(user_message("in threads"))
        call.send({"type": "response.create"})
        events = []
        for event in call:
            events.append(event)
            if event["type"] == "response.done":
                break
        assert proxy.count == 3
    assert spoken(events)[0] == "in threads"
    assert len({event["event_id"] for event in events}) == len(events)
    assert talker.wait_until_idle()


def test_events_are_kept_while_the_server_cannot_be_reached(talker):
    async def run():
        async with AsyncClient(talker.url) as client, client.realtime("talker") as call:
            await call.send({"type": "session.update", "session": SETTINGS | {"output_modalities": ["text"]}})
            call._socket.transport.abort()
            for number in range(40):
                await call.send(user_message(str(number)))
            await call.send({"type": "response.create"})
            events = []
            async for event in call:
                events.append(event)
                if event["type"] == "response.done":
                    return events

    events = asyncio.run(run())
    texts = [event["item"]["content"][0]["text"] for event in events if event["type"] == "conversation.item.done"]
    assert texts == [*map(str, range(40)), "39"]


def test_the_end_of_a_session_is_an_error(talker):
    async def ended_by_the_client():
        async with AsyncClient(talker.url) as client, client.realtime("talker", resume_timeout_s=0.2) as call:
            call._socket.transport.abort()
            await asyncio.sleep(1)
            await call.send({"type": "response.create"})
            [event async for event in call]

    with pytest.raises(SessionEnded, match="has ended, or cannot be resumed"):
        asyncio.run(ended_by_the_client())

    async def unknown_model():
        async with AsyncClient(talker.url) as client, client.realtime("missing-model"):
            pass

    with pytest.raises(NotFound, match="no model is called `missing-model`"):
        asyncio.run(unknown_model())


def test_a_server_that_does_not_come_back_is_unreachable():
    with run_proxy("http://127.0.0.1:9") as proxy:
        port = proxy.url
    with Client(port) as client, pytest.raises(ServerUnreachable), client.realtime("talker", resume_timeout_s=0.3):
        pass


def test_a_shutdown_ends_the_session():
    def stop():
        process.send_signal(signal.SIGTERM)

    with start_server(f"{TALKER}:Talker", "--in-process", "--name", "talker") as (process, url):
        wait_ready(process)
        with Client(url) as client, client.realtime("talker") as call:
            assert call.recv()["type"] == "session.created"
            threading.Timer(0.1, stop).start()
            assert call.recv()["error"]["code"] == "shutting_down"
            with pytest.raises(SessionEnded, match="shutting_down"):
                call.recv()


def test_the_log_keeps_a_bounded_number_of_sent_events(monkeypatch):
    monkeypatch.setattr(client_realtime, "MAX_SENT_BYTES", 100)
    log = SessionLog(30, {})
    log.receive('{"type": "session.created", "event_id": "e0", "session": {"id": "s"}}')
    for number in range(20):
        log.record({"type": f"event {number:2}"})
    assert len([*iter(log.next_unsent, None)]) == 20
    log.receive('{"type": "session.resumed", "event_id": "e1", "received_events": 16}')
    assert [json.loads(one)["type"] for one in iter(log.next_unsent, None)] == [f"event {one}" for one in range(16, 20)]
    assert log.query == "session_id=s&last_event_id=e0"
    with pytest.raises(SessionEnded, match="are not kept any more"):
        log.receive('{"type": "session.resumed", "event_id": "e2", "received_events": 2}')
