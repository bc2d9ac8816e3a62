"""A real server behind a proxy that cuts connections: what the caller gets is whole and once, or an error says why."""

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


def test_a_chat_that_is_cut_goes_on_where_it_was(server):
    with run_proxy(server.url, 9000, 0, 30_000, 120_000) as proxy, Client(proxy.url) as client:
        stream = client.chat("parrot", WORDS, seed=1)
        text = "".join(event.text for event in stream)
        assert (text, stream.result().text) == (WORDS, WORDS)
        assert proxy.count == 5
        assert client.chat("parrot", "again", temperature=0).result().text == "again"
        assert proxy.count == 5  # the connection is used again
    assert server.wait_until_idle()


def test_the_same_for_tasks(server):
    async def ask(url):
        async with AsyncClient(url) as client:
            return "".join([event.text async for event in client.chat("parrot", WORDS, seed=1)])

    with run_proxy(server.url, 9000) as proxy:
        assert asyncio.run(ask(proxy.url)) == WORDS
    assert proxy.count == 2


def test_what_may_differ_is_cut_or_diverges(server):
    with run_proxy(server.url, 9000, 9000) as proxy, Client(proxy.url) as client:
        got = []
        with pytest.raises(StreamInterrupted, match="resume=True"):
            got.extend(client.chat("parrot", WORDS))
        assert WORDS.startswith("".join(event.text for event in got))
        assert got
        with pytest.raises(StreamDiverged):
            client.chat("parrot", "{seed} " + WORDS, resume=True).result()  # which says the seed, and has none
        assert client.chat("parrot", WORDS, resume=True).result().text == WORDS
    assert server.wait_until_idle()


def test_emissions_that_came_are_not_delivered_again(server):
    request = {"sound": np.tile(SOUND, 40), "times": 30}
    with run_proxy(server.url, 8000, 20_000) as proxy, Client(proxy.url) as client:
        emissions = list(client.generate("mixer", request, resume=True))
        assert proxy.count == 3
    with run_proxy(server.url, 8000) as proxy, Client(proxy.url) as client, pytest.raises(StreamInterrupted):
        client.generate("mixer", request).result()
    assert [one.index for one in emissions] == list(range(30))
    assert all(np.array_equal(one.value, request["sound"] * np.float32(one.index + 1)) for one in emissions)


def test_sound_has_no_seam(speech_server):
    def spoken(url, **how):
        with Client(url) as client:
            stream = client.speech("talker", "hello you", sample_rate=RATE, seed=7, **how)
            return b"".join(event.data for event in stream)

    for form in ("wav", "mp3"):
        with run_proxy(speech_server.url, 2000, 4000) as proxy:
            assert spoken(proxy.url, response_format=form) == spoken(speech_server.url, response_format=form)
            assert proxy.count == 3


def test_a_robot_is_not_moved_twice(robot_server):
    count = len(robot_server.models["arm"].seen)
    with run_proxy(robot_server.url, 0) as proxy, Client(proxy.url) as client:
        with pytest.raises(ServerUnreachable):
            client.act("arm", observation())
        assert len(robot_server.models["arm"].seen) == count + 1


def test_a_step_whose_answer_is_lost_is_done_once(robot_server):
    with Client(robot_server.url) as near:
        world = near.world("dreamer", {"frames": FRAMES})
        world.step(ACTIONS[0])
        with run_proxy(robot_server.url, 100) as proxy, Client(proxy.url) as far:
            again = type(world)(far._stream, {"id": world.id, "steps": world.steps})
            shown = again.step(ACTIONS[1])
            assert proxy.count == 2
        assert np.array_equal(shown.emissions["Latents"], expected_rollout(ACTIONS[:2])[1])
        assert near._http.get(f"/v1/worlds/{world.id}").json()["steps"] == 2


def test_a_server_that_starts_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(state, "NOT_READY_RETRY_AFTER_S", 0.05)
    server.state.phase = Phase("starting", 0, 1)
    with Client(server.url) as client:
        later = threading.Timer(0.3, lambda: setattr(server.state, "phase", Phase("ready")))
        later.start()
        begun = time.monotonic()
        assert client.chat("parrot", "there").result().text == "there"
        assert time.monotonic() - begun > 0.25
        later.join()


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back_is_asked_again():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    how = (f"{PARROT}:Parrot", "--in-process", "--name", "parrot", "--port", port)
    text = "slow " + WORDS[:200]
    with start_server(*how) as (process, url), Client(url) as client:
        wait_ready(process)
        events = iter(client.chat("parrot", text, seed=1))
        got = [next(events).text for _ in range(20)]
        process.kill()
        process.wait()
        with start_server(*how):
            got += [event.text for event in events]
    assert "".join(got) == text
