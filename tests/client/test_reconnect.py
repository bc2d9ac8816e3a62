"""Both clients behind a proxy that resets connections: every response is complete and exactly once, or an error."""

import asyncio
import socket
import threading
import time

import numpy as np
import pytest

from mstar.client import AsyncClient, Client, ServerUnreachable, StreamDiverged, StreamInterrupted
from mstar.server import state
from mstar.server.state import Phase
from tests.cli.test_serve import PARROT, start_server, wait_ready
from tests.client.proxy import run_proxy
from tests.client.test_client import ACTIONS, FRAMES, SOUND, expected_rollout
from tests.server.toy_robot_models import observation
from tests.server.toy_speech_models import RATE

WORDS = "the quick brown fox jumps over the lazy dog " * 20


def test_an_interrupted_chat_resumes(server):
    with run_proxy(server.url, 9000, 0, 30_000, 120_000) as proxy, Client(proxy.url) as client:
        stream = client.chat("parrot", WORDS, seed=1)
        text = "".join(event.text for event in stream)
        assert (text, stream.result().text) == (WORDS, WORDS)
        assert proxy.count == 5
        assert client.chat("parrot", "again", temperature=0).result().text == "again"
        assert proxy.count == 5  # the connection is reused
    assert server.wait_until_idle()


def test_an_interrupted_chat_resumes_in_asyncio(server):
    async def ask(url):
        async with AsyncClient(url) as client:
            return "".join([event.text async for event in client.chat("parrot", WORDS, seed=1)])

    with run_proxy(server.url, 9000) as proxy:
        assert asyncio.run(ask(proxy.url)) == WORDS
    assert proxy.count == 2


def test_a_nondeterministic_stream_is_interrupted_or_diverges(server):
    with run_proxy(server.url, 9000, 9000) as proxy, Client(proxy.url) as client:
        got = []
        with pytest.raises(StreamInterrupted, match="resume=True"):
            got.extend(client.chat("parrot", WORDS))
        assert WORDS.startswith("".join(event.text for event in got))
        assert got
        with pytest.raises(StreamDiverged):
            client.chat("parrot", "{seed} " + WORDS, resume=True).result()  # echoes the random seed
        assert client.chat("parrot", WORDS, resume=True).result().text == WORDS
    assert server.wait_until_idle()


def test_emissions_are_delivered_once(server):
    request = {"sound": np.tile(SOUND, 40), "times": 30}
    with run_proxy(server.url, 8000, 20_000) as proxy, Client(proxy.url) as client:
        emissions = list(client.generate("mixer", request, resume=True))
        assert proxy.count == 3
    with run_proxy(server.url, 8000) as proxy, Client(proxy.url) as client, pytest.raises(StreamInterrupted):
        client.generate("mixer", request).result()
    assert [one.index for one in emissions] == list(range(30))
    assert all(np.array_equal(one.value, request["sound"] * np.float32(one.index + 1)) for one in emissions)


def test_resumed_audio_is_identical(speech_server):
    def spoken(url, **options):
        with Client(url) as client:
            stream = client.speech("talker", "hello you", sample_rate=RATE, seed=7, **options)
            return b"".join(event.data for event in stream)

    for form in ("wav", "mp3"):
        with run_proxy(speech_server.url, 2000, 4000) as proxy:
            assert spoken(proxy.url, response_format=form) == spoken(speech_server.url, response_format=form)
            assert proxy.count == 3


def test_an_action_is_not_retried(robot_server):
    count = len(robot_server.models["arm"].seen)
    with run_proxy(robot_server.url, 0) as proxy, Client(proxy.url) as client:
        with pytest.raises(ServerUnreachable):
            client.act("arm", observation())
        assert len(robot_server.models["arm"].seen) == count + 1


def test_a_world_step_is_retried_and_executed_once(robot_server):
    with Client(robot_server.url) as near:
        world = near.world("dreamer", {"frames": FRAMES})
        world.step(ACTIONS[0])
        with run_proxy(robot_server.url, 100) as proxy, Client(proxy.url) as far:
            again = type(world)(far._stream, {"id": world.id, "steps": world.steps})
            result = again.step(ACTIONS[1])
            assert proxy.count == 2
        assert np.array_equal(result.emissions["Latents"], expected_rollout(ACTIONS[:2])[1])
        assert near._http.get(f"/v1/worlds/{world.id}").json()["steps"] == 2


def test_a_starting_server_is_retried(server, monkeypatch):
    monkeypatch.setattr(state, "NOT_READY_RETRY_AFTER_S", 0.05)
    server.state.phase = Phase("starting", 0, 1)
    with Client(server.url) as client:
        later = threading.Timer(0.3, lambda: setattr(server.state, "phase", Phase("ready")))
        later.start()
        started_at = time.monotonic()
        assert client.chat("parrot", "there").result().text == "there"
        assert time.monotonic() - started_at > 0.25
        later.join()


@pytest.mark.slow
def test_a_restarted_server_is_retried():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = (f"{PARROT}:Parrot", "--in-process", "--name", "parrot", "--port", port)
    text = "slow " + WORDS[:200]
    with start_server(*options) as (process, url), Client(url) as client:
        wait_ready(process)
        events = iter(client.chat("parrot", text, seed=1))
        got = [next(events).text for _ in range(20)]
        process.kill()
        process.wait()
        with start_server(*options):
            got += [event.text for event in events]
    assert "".join(got) == text
