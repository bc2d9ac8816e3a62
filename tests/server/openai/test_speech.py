"""Tests of the speech endpoints with the OpenAI SDK, as voice agent frameworks call them, and over WebSockets."""

import base64
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import av
import httpx2
import numpy as np
import pytest
from openai import NotFoundError, OpenAI
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar import Audio, Model, walk
from mstar.requests import SpeechRequest
from mstar.server.errors import ApiError
from mstar.server.openai.speech import SpeechOptions
from mstar.server.state import ServedModel
from tests.server.toy_speech_models import RATE, ToneGenerator, letters_in, run_speech_server

TEXT = "Hello, robot."


@pytest.fixture(scope="module")
def server():
    with run_speech_server() as started:
        yield started


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def speech_model(server):
    return server.state.served_models["talker"].model


def recognize(data, rate=24_000, skip=0):
    """Text of synthesized 16-bit PCM."""
    samples = np.frombuffer(data, "<i2")[skip:] / 32768
    return "".join(map(chr, letters_in(np.append(samples, np.zeros(16)), rate)))


def decode_samples(data):
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler("s16", "mono", 24_000)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav"}


@pytest.mark.parametrize("name", TYPES)
def test_every_format_contains_the_text(openai, name):
    response = openai.audio.speech.create(model="talker", voice="alto", input=TEXT, response_format=name)
    assert response.response.headers["content-type"] == TYPES[name]
    samples = decode_samples(response.content)
    assert abs(len(samples) / 24_000 - len(TEXT) / 10) < 0.11
    delay = {"mp3": 1105, "aac": 1024}.get(name, 0)  # encoder delay of these formats, in samples
    assert recognize(samples.tobytes(), skip=delay)[: len(TEXT)] == TEXT


def test_the_default_is_mp3_at_24_khz(server, openai):
    response = openai.audio.speech.create(
        model="talker", voice={"id": "bass"}, input="hi", speed=1.5, instructions="low"
    )
    assert response.response.headers["content-type"] == "audio/mpeg"
    assert response.response.headers["x-sample-rate"] == "24000"
    assert response.response.headers["x-request-id"]
    request = speech_model(server).seen[-1]
    assert (request.text, request.voice, request.speed, request.instructions) == ("hi", "bass", 1.5, "low")


def test_streamed_pcm_as_pipecat_requests_it(server, openai):
    """Raw samples at its fixed rate, read in chunks of its own size while they are synthesized."""
    with openai.audio.speech.with_streaming_response.create(
        model="talker", voice="alloy", input="slow " + TEXT, response_format="pcm"
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "audio/pcm;rate=24000"
        times, data = [], b""
        for chunk in response.iter_bytes(4800):
            times.append(time.monotonic())
            data += chunk
    assert recognize(data) == "slow " + TEXT
    assert times[-1] - times[0] > 0.1  # the first chunk arrived long before the last was synthesized


@pytest.mark.parametrize("name", ["mp3", "pcm", "opus"])
def test_sse_audio_as_livekit_requests_it(openai, name):
    """SSE events whose audio deltas concatenate to one file."""
    with openai.audio.speech.with_streaming_response.create(
        model="talker", voice="ash", input=TEXT, response_format=name, stream_format="sse", speed=1.0
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    *deltas, done = events
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert len(deltas) > 3
    assert done["type"] == "speech.audio.done"
    size = len(TEXT)  # a letter is 0.1 s of audio: two tokens of 50 ms
    assert done["usage"] == {"input_tokens": size, "output_tokens": 2 * size, "total_tokens": 3 * size}
    data = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    samples = np.frombuffer(data, "<i2") if name == "pcm" else decode_samples(data)
    assert recognize(samples.tobytes(), skip=1105 if name == "mp3" else 0)[: len(TEXT)] == TEXT


def test_the_sample_rate_can_be_chosen(openai):
    body = {"sample_rate": 8000}
    response = openai.audio.speech.create(
        model="talker", voice="x", input="abc", response_format="pcm", extra_body=body
    )
    assert response.response.headers["content-type"] == "audio/pcm;rate=8000"
    assert response.response.headers["x-sample-rate"] == "8000"
    assert recognize(response.content, 8000) == "abc"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"speed": 4.1}, "speed"),
        ({"speed": float("nan")}, None),
        ({"response_format": "ogg"}, "response_format"),
        ({"stream_format": "xml"}, "stream_format"),
        ({"sample_rate": 2**31}, "sample_rate"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"seed": 2**63}, "seed"),
        ({"voice": {"id": ""}}, "voice"),
        ({"timestamp_granularities": ["letter"], "stream_format": "sse"}, "timestamp_granularities"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
    ],
)
def test_invalid_parameters_are_named_and_reach_no_model(server, openai, params, param):
    before = len(speech_model(server).seen)
    with server.client() as client:
        body = json.dumps({"model": "talker", "input": "hi"} | params)
        response = client.post("/v1/audio/speech", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert param is None or response.json()["error"]["param"].startswith(param)
    assert len(speech_model(server).seen) == before


def test_words_of_an_event_stream_have_times(server):
    body = {"model": "talker", "input": "Hi, you two.", "response_format": "pcm", "stream_format": "sse"}
    with server.client() as client:
        streamed = client.post("/v1/audio/speech", json=body | {"timestamp_granularities": ["word"]}).text
        plain = client.post("/v1/audio/speech", json=body).text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)
    assert recognize(audio) == body["input"]
    words = [word for event in events if event["type"] == "speech.audio.words" for word in event["words"]]
    assert words == [
        {"word": "Hi,", "start": 0.0, "end": 0.3, "text_start": 0, "text_end": 3},
        {"word": "you", "start": 0.4, "end": 0.7, "text_start": 4, "text_end": 7},
        {"word": "two.", "start": 0.8, "end": 1.2, "text_start": 8, "text_end": 12},
    ]
    assert events[-1]["type"] == "speech.audio.done"
    assert "words" not in plain


def test_timestamps_of_a_model_without_them_are_rejected():
    with pytest.raises(ApiError, match="hummer has no word timestamps"):
        SpeechOptions(model="hummer", timestamp_granularities=("word",)).check_timestamps(
            ServedModel.from_model("hummer", Hummer())
        )


class Hummer(Model):
    def __init__(self) -> None:
        self.generator = ToneGenerator()

    @walk
    def hum(self, text: str) -> Iterator[Audio]:
        yield Audio(self.generator.tone(text, 0), rate=RATE)

    async def route(self, request: SpeechRequest) -> None:
        await self.hum(request.text)


def test_a_model_without_speech_names_its_endpoints(openai):
    with pytest.raises(NotFoundError, match="it is served at `/v1/audio/transcriptions`, `/v1/audio/translations`"):
        openai.audio.speech.create(model="scribe", voice="x", input="hi")


def test_a_failure_never_looks_like_a_complete_file(server):
    body = {"model": "talker", "input": "boom, and more", "response_format": "pcm"}
    with server.client() as client, pytest.raises(httpx2.RemoteProtocolError):
        client.post("/v1/audio/speech", json=body)
    with server.client() as client:
        lines = client.post("/v1/audio/speech", json=body | {"stream_format": "sse"}).text.split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events[-1]["error"]["code"] == "model_error"
    assert "secret" not in str(events)
    assert "speech.audio.done" not in str(events)
    assert server.wait_until_idle()


def test_a_disconnected_client_stops_synthesis(server):
    body = {"model": "talker", "input": "slow " + "x" * 1000, "response_format": "pcm"}
    with server.client() as client, client.stream("POST", "/v1/audio/speech", json=body) as response:
        next(response.iter_raw())
        assert server.request_stats()
    assert server.wait_until_idle()


def test_an_openai_voice_maps_to_the_default_voice(server, openai):
    for name, resolved in (("alloy", ""), ("marin", ""), ("bass", "bass"), ("other", "other")):
        openai.audio.speech.create(model="talker", voice=name, input="a", response_format="pcm")
        assert speech_model(server).seen[-1].voice == resolved


def test_voices_are_listed(server):
    with server.client() as client:
        voices = client.get("/v1/audio/voices").json()
        assert voices["voices"] == ["alto", "bass"]
        assert voices["data"][0] == {"id": "alto", "object": "audio.voice", "name": "alto", "model": "talker"}
        assert client.get("/v1/audio/voices?model=talker").json() == voices
        assert client.get("/v1/audio/voices?model=scribe").status_code == 404


# ---------------------------------------------------------------- streaming text input
@contextmanager
def open_stream(server, **config):
    with connect(server.url.replace("http", "ws") + "/v1/audio/speech/stream") as socket:
        send_event(socket, "session.config", model="talker", voice="alto", **config)
        yield socket


def send_event(socket, kind, **content):
    socket.send(json.dumps({"type": kind} | content))


def read_until(socket, until):
    """All messages up to the first event of a type; audio as bytes."""
    messages = []
    while not messages or isinstance(messages[-1], bytes) or messages[-1]["type"] != until:
        message = socket.recv(5)
        messages.append(message if isinstance(message, bytes) else json.loads(message))
    return messages


def test_sentences_are_synthesized_while_text_arrives(server):
    with open_stream(server) as socket:
        for piece in ("Hel", "lo. How ", "are"):
            send_event(socket, "input.text", text=piece)
        first = read_until(socket, "audio.done")  # before input.done
        assert first[0] == {
            "type": "audio.start",
            "sentence_index": 0,
            "sentence_text": "Hello.",
            "format": "pcm",
            "sample_rate": 24_000,
        }
        assert recognize(b"".join(first[1:-1])) == "Hello."
        send_event(socket, "input.text", text=" you?")
        send_event(socket, "input.done")
        *second, done = read_until(socket, "session.done")
        assert recognize(b"".join(second[1:-1])) == "How are you?"
        assert second[-1]["total_bytes"] == len(b"".join(second[1:-1]))
        assert done == {"type": "session.done", "total_sentences": 2}
    assert server.wait_until_idle()


def test_words_of_a_speech_stream_have_times(server):
    with open_stream(server, timestamp_granularities=["word"]) as socket:
        send_event(socket, "input.text", text="Hello. How are you?")
        send_event(socket, "input.done")
        events = [event for event in read_until(socket, "session.done") if not isinstance(event, bytes)]
    words = [
        (event["sentence_index"], word["word"], word["start"])
        for event in events
        if event["type"] == "audio.words"
        for word in event["words"]
    ]
    assert words == [(0, "Hello.", 0.0), (1, "How", 0.0), (1, "are", 0.4), (1, "you?", 0.8)]


def test_input_cancel_stops_synthesis(server):
    with open_stream(server) as socket:
        send_event(socket, "input.text", text="slow " + "x" * 1000 + ". And this never.\n")
        assert socket.recv(5).startswith('{"type":"audio.start"')
        assert isinstance(socket.recv(5), bytes)
        send_event(socket, "input.cancel")
        done = read_until(socket, "audio.done")[-1]
        assert (done["sentence_index"], done["cancelled"]) == (0, True)
        deadline = time.monotonic() + 1
        while "streams" in server.request_stats() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "streams" not in server.request_stats()  # the request has ended too
        send_event(socket, "input.text", text="Now this.")
        send_event(socket, "input.done")
        assert read_until(socket, "session.done")[0]["sentence_text"] == "Now this."


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"type": "input.text", "text": "too early"}], "invalid_value"),
        ([{"type": "session.config", "model": "unknown"}], "model_not_found"),
        ([{"type": "session.config", "model": "scribe"}], "endpoint_not_supported"),
        ([{"type": "session.config", "model": "talker", "speed": 9}], "invalid_value"),
        ([{"type": "session.config", "model": "talker"}, {"type": "input.what"}], "invalid_value"),
        ([{"type": "session.config", "model": "talker"}, {"type": "input.text", "text": "x" * 4097}], "too_large"),
        ([{"type": "session.config", "model": "talker"}, {"type": "input.text", "text": "boom!\n"}], "model_error"),
    ],
)
def test_an_error_in_a_speech_stream_is_reported(server, messages, code):
    with connect(server.url.replace("http", "ws") + "/v1/audio/speech/stream") as socket:
        for message in messages:
            socket.send(json.dumps(message))
        assert read_until(socket, "error")[-1]["error"]["code"] == code
        with pytest.raises(ConnectionClosed):
            socket.recv(5)
    assert server.wait_until_idle()


def test_a_disconnected_websocket_stops_synthesis(server):
    with open_stream(server) as socket:
        send_event(socket, "input.text", text="slow " + "x" * 1000 + ".\n")
        assert read_until(socket, "audio.start")
        assert isinstance(socket.recv(5), bytes)
    assert server.wait_until_idle()
