"""Both clients against real servers: equal results, typed errors, and no leftovers after a disconnect."""

import asyncio
import subprocess
import sys
import wave

import numpy as np
import pytest

from mstar.client import (
    Array,
    AsyncClient,
    Audio,
    AuthenticationError,
    BadRequest,
    Client,
    ClientError,
    Emission,
    NotFound,
    ServerError,
    ServerNotReady,
    ServerUnreachable,
    StreamInterrupted,
    Text,
)
from mstar.client import arrays as client_arrays
from mstar.requests import ActionRequest, RolloutRequest
from mstar.server.access.api_keys import ApiKeys
from mstar.server.state import Phase
from tests.server.toy_models import BOOM
from tests.server.toy_robot_models import Arm, ToyWorldModel, observation
from tests.server.toy_server import run_toy_server
from tests.server.toy_speech_models import LETTER, RATE, letters_in, tones

SLOW = "slow" + "x" * 2000


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as opened:
        yield opened


def run_async(url, call, **options):
    """Run a coroutine function with an AsyncClient."""

    async def run():
        async with AsyncClient(url, **options) as client:
            return await call(client)

    return asyncio.run(run())


# ---------------------------------------------------------------- chat and generate
def test_a_chat_is_streamed_and_has_a_result(server, client):
    stream = client.chat("parrot", "naïve", temperature=0)
    events = list(stream)
    assert all(isinstance(event, Text) for event in events)
    assert len(events) > 3
    reply = stream.result()
    assert "".join(event.text for event in events) == reply.text == "naïve"
    assert (reply.finish_reason, reply.usage["completion_tokens"], reply.audio) == ("stop", 6, b"")

    async def call(client):
        stream = client.chat("parrot", "naïve", temperature=0)
        return [event async for event in stream], await stream.result()

    assert run_async(server.url, call) == (events, reply)


def test_a_chat_with_audio_output(client):
    stream = client.chat("parrot", "hi", audio={"format": "pcm16"})
    events = list(stream)
    audio = b"".join(event.data for event in events if isinstance(event, Audio))
    assert audio == stream.result().audio
    assert len(audio) == 2 * 240 * 2
    assert stream.result().text == "hi"


def test_parameters_reach_the_model(server, client):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "long text"}]
    assert client.chat("parrot", messages, max_tokens=4, top_p=0.5, seed=9).result().finish_reason == "length"
    seen = server.parrot.seen[-1]
    assert (seen.sampling.max_tokens, seen.sampling.top_p, seen.sampling.seed) == (4, 0.5, 9)
    assert [turn.role for turn in seen.messages] == ["system", "user"]


def test_a_tool_call(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    reply = client.chat("parrot", '{"name": "f", "arguments": {"x": 1}}', tools=[tool], tool_choice="required").result()
    (call,) = reply.tool_calls
    assert (reply.finish_reason, reply.text, call.name, call.arguments) == ("tool_calls", "", "f", '{"x":1}')


def test_a_trace_can_be_fetched(server, client):
    stream = client.chat("parrot", "abc")
    stream.result()
    assert client.trace(stream.request_id)["model"] == "parrot"

    async def call(client):
        return await client.trace(stream.request_id)

    assert run_async(server.url, call)["id"] == stream.request_id


SOUND = np.linspace(-1, 1, 7, dtype=np.float32)


def test_emissions_are_typed_and_contain_arrays(server, client):
    stream = client.generate("mixer", {"sound": SOUND, "times": 3, "gains": [1.5]})
    for index, emission in enumerate(stream):
        assert isinstance(emission, Emission)
        assert (emission.kind, emission.index, emission.clock) == ("Audio", index, {"rate": 8000})
        assert np.array_equal(emission.value, SOUND * np.float32(index + 1))
    result = stream.result().result
    assert (result["gains"], result["sound"].tolist()) == ([1.5], SOUND.tolist())

    async def call(client):
        return [one.value.tolist() async for one in client.generate("mixer", {"sound": SOUND, "times": 1})]

    assert run_async(server.url, call) == [SOUND.tolist()]


def test_arrays_without_numpy(client, monkeypatch):
    monkeypatch.setattr(client_arrays.importlib.util, "find_spec", lambda name: None)
    (first,) = client.generate("mixer", {"sound": Array("float32", (7,), SOUND.tobytes()), "times": 1})
    assert first.value == Array("float32", (7,), SOUND.tobytes())


def test_embeddings(server, client):
    expected = [[1, 1.5], [2, 0.5]]
    assert client.embed("vectors", ["a", "bb"]).tolist() == expected

    async def call(client):
        return (await client.embed("vectors", ["a", "bb"])).tolist()

    assert run_async(server.url, call) == expected


# ---------------------------------------------------------------- speech
def test_speech_and_transcription(speech_server, tmp_path):
    with Client(f"{speech_server.url}/v1/") as client:
        spoken = client.speech("talker", "hello", voice="alto", sample_rate=RATE, seed=1).result()
        assert [one.id for one in client.models()] == ["talker", "scribe"]
        transcript = client.transcribe("scribe", spoken.data, prompt="terse")
        events = list(transcript)
    assert spoken.sample_rate == RATE
    spoken.save(tmp_path / "x.wav")
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert file.getnframes() == 5 * LETTER
        samples = np.frombuffer(file.readframes(5 * LETTER), "<i2") / 32768
    assert bytes(letters_in(samples, RATE).tolist()) == b"hello"
    assert len(events) > 1
    assert "".join(event.text for event in events) == transcript.result().text == "hello"


def test_a_file_is_transcribed_by_path(speech_server, tmp_path):
    import soundfile

    soundfile.write(tmp_path / "x.wav", tones("hi"), RATE)

    async def call(client):
        return await client.transcribe("scribe", tmp_path / "x.wav", language="en").result()

    transcript = run_async(speech_server.url, call)
    assert (transcript.text, transcript.usage["seconds"]) == ("hi", 0.2)


# ---------------------------------------------------------------- robots and worlds
def test_robot_actions(robot_server):
    expected = Arm().run(ActionRequest(observation(), "fold", 3)).emissions[0]
    with Client(robot_server.url) as client:
        action = client.act("arm", observation(), prompt="fold", seed=3, inference_delay=2)
    assert np.array_equal(action.actions, expected.value)
    assert (action.rate, robot_server.models["arm"].seen[-1].delay) == (50, 2)
    assert action.timing["infer_ms"] > 0


FRAMES = np.random.default_rng(0).integers(0, 255, (2, 3, 16, 16)).astype(np.float32)
ACTIONS = np.random.default_rng(1).integers(-9, 9, (3, 7)).astype(np.float32)


def expected_rollout(actions):
    return [one.value for one in ToyWorldModel().run(RolloutRequest({"frames": FRAMES}, tuple(actions))).emissions]


def test_a_world_is_stepped_forked_and_reset(robot_server):
    with Client(robot_server.url) as client, client.world("dreamer", {"frames": FRAMES}) as world:
        first = world.step(ACTIONS[0])
        other = world.fork()
        second, aside = world.step(ACTIONS[1]), other.step(ACTIONS[2])
        world.reset()
        again = world.step(ACTIONS[0])
        other.close()
        with pytest.raises(NotFound):
            other.step(ACTIONS[0])
    assert np.array_equal(first.emissions["Latents"], again.emissions["Latents"])
    assert np.array_equal(second.emissions["Latents"], expected_rollout(ACTIONS[:2])[1])
    assert np.array_equal(aside.emissions["Latents"], expected_rollout(ACTIONS[[0, 2]])[1])

    async def call(client):
        async with await client.world("dreamer", {"frames": FRAMES}, actions=ACTIONS[:1].tolist()) as world:
            fork = await world.fork()
            await world.reset()
            return world.steps, fork.steps

    assert run_async(robot_server.url, call) == (0, 1)


# ---------------------------------------------------------------- errors
def test_errors_are_typed(client):
    with pytest.raises(NotFound, match="did you mean `parrot`") as refused:
        client.chat("parot", "x").result()
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(BadRequest) as refused:
        client.chat("parrot", "x", temperature=9).result()
    assert (refused.value.status, refused.value.param) == (400, "temperature")
    assert str(refused.value).endswith("\n  fix: change the request")
    with pytest.raises(NotFound, match="/v1/chat/completions"):
        client.embed("parrot", ["x"])


def test_a_failure_in_the_middle_of_a_stream_is_typed(client):
    for stream in (client.chat("parrot", f"abc{BOOM}", seed=1), client.generate("free", {"text": BOOM, **FREE})):
        events = iter(stream)
        with pytest.raises(ServerError) as failed:
            list(events)
        assert (failed.value.code, failed.value.status) == ("model_error", 500)
        assert failed.value.request_id == stream.request_id


FREE = {"steps": 3, "prompt": np.zeros((1, 2), np.int64)}


def test_a_missing_key_is_an_authentication_error():
    with run_toy_server(keys=ApiKeys(["k"])) as server:
        with Client(server.url) as client, pytest.raises(AuthenticationError, match="key="):
            client.models()
        with Client(server.url, "k") as client:
            assert client.models()[0].id == "parrot"


def test_an_unreachable_server():
    with pytest.raises(ClientError, match="http://host:port"):
        Client("localhost:8000")
    with Client("http://127.0.0.1:1", retry_timeout_s=0) as client:
        with pytest.raises(ServerUnreachable):
            client.models()
        with pytest.raises(ServerNotReady, match="unreachable"):
            client.wait_ready(0.1)


def test_waiting_for_readiness(server, client):
    assert client.ready().name == "ready"
    assert client.wait_ready(0).name == "ready"
    try:
        server.state.phase = Phase("starting", 1, 3)
        assert client.ready() == client.ready()
        assert client.ready().done == 1
        with pytest.raises(ServerNotReady, match="starting, 1 of 3, after"):
            client.wait_ready(0.1)
    finally:
        server.state.phase = Phase("ready")

    async def call(client):
        return await client.wait_ready(0)

    assert run_async(server.url, call).name == "ready"


# ---------------------------------------------------------------- disconnects
def test_closing_a_stream_cancels_the_request(server, client):
    for _ in client.chat("parrot", SLOW, max_tokens=2000):
        assert server.request_stats()
        break
    assert server.wait_until_idle(1.0), server.request_stats()
    with client.chat("parrot", SLOW, max_tokens=2000) as stream:
        next(iter(stream))
    assert server.wait_until_idle(1.0), server.request_stats()
    with pytest.raises(StreamInterrupted, match="closed"):
        stream.result()


def test_breaking_out_or_cancelling_a_task_cancels_the_request(server):
    async def call(client):
        async for _ in client.chat("parrot", SLOW, max_tokens=2000):
            break
        await asyncio.sleep(0.01)  # the event loop closes the abandoned generator
        assert await asyncio.to_thread(server.wait_until_idle, 1.0)
        task = asyncio.create_task(client.chat("parrot", SLOW, max_tokens=2000).result())
        while not await asyncio.to_thread(server.request_stats):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return await asyncio.to_thread(server.wait_until_idle, 1.0)

    assert run_async(server.url, call)


def test_the_client_imports_no_part_of_the_server():
    code = "import sys, mstar.client; print([name for name in sys.modules if name in sys.argv[1:]])"
    names = ["torch", "numpy", "starlette", "mstar.server", "mstar.conductor", "mstar.wire", "pydantic"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
