"""Servers in processes of their own: calls over a balancer outlive SIGKILL to one server, and the drain of another."""

import asyncio
import base64
import signal
from contextlib import ExitStack

import pytest

from mstar.client import AsyncClient
from tests.cli.test_serve import ROOT, start_server, wait_ready
from tests.client.balancer import balance
from tests.server.realtime.backup.test_takeover import LONG, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MODEL = f"{ROOT / 'tests/server/toy_voice_model.py'}:Talker"
SPEECH = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
CALLS, TURNS = 4, 2
TEXT = "slow " + LONG


@pytest.fixture
def servers(tmp_path):
    """Three servers that keep copies of each other's sessions: process and port."""
    key = tmp_path / "key"
    key.write_text("the key of all three")
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:
        started = []
        for port in ports:
            backups = [f"http://127.0.0.1:{other}" for other in ports if other != port]
            options = [word for url in backups for word in ("--session-backup", url)]
            options += [
                "--session-backup-key-file",
                str(key),
                "--name",
                "talker",
                "--in-process",
                "--port",
                str(port),
                "--api-key",
                "k",
            ]
            process, _ = stack.enter_context(start_server(MODEL, *options))
            started.append((process, port))
        for process, _ in started:
            wait_ready(process)
        yield started


async def hold_call(url, is_speaking):
    """Sounds of the responses of one call."""
    sounds, ids = [], []
    async with AsyncClient(url, "k") as client, client.realtime("talker", resume_timeout_s=30) as call:
        await call.send({"type": "session.update", "session": SPEECH})
        for _ in range(TURNS):
            content = [{"type": "input_text", "text": TEXT}]
            await call.send(
                {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}
            )
            await call.send({"type": "response.create"})
            sound = b""
            while (event := await call.recv())["type"] != "response.done":
                assert event["type"] != "error", event
                ids.append(event["event_id"])
                if event["type"] == "response.output_audio.delta":
                    sound += base64.b64decode(event["delta"])
                    is_speaking.set()
            assert event["response"]["status"] == "completed"
            sounds.append(sound)
    assert len({*ids}) == len(ids)
    return sounds


def test_calls_outlive_a_killed_server_and_a_drain(servers):
    async def run():
        (first, _), (second, _), (_, third_port) = servers
        undisturbed = await hold_call(f"http://127.0.0.1:{third_port}", asyncio.Event())
        async with balance([("127.0.0.1", port) for _, port in servers]) as (balancer, url):
            while len(balancer.ready) < len(servers):
                await asyncio.sleep(0.05)
            speaking = [asyncio.Event() for _ in range(CALLS)]
            calls = [asyncio.create_task(hold_call(url, event)) for event in speaking]
            await asyncio.gather(*(event.wait() for event in speaking))
            first.kill()
            await asyncio.sleep(1.0)
            second.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(asyncio.to_thread(second.wait), 20) == 0
            assert not all(call.done() for call in calls), "the drain did not wait for the calls"
            for sounds in await asyncio.gather(*calls):
                assert sounds == undisturbed
            assert balancer.ready == {("127.0.0.1", third_port)}

    asyncio.run(run())
