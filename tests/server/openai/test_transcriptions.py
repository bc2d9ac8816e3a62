"""Tests of the transcription endpoints with the OpenAI SDK, as voice agents call them, and over plain HTTP."""

import io
import json
import time
from http.client import HTTPConnection

import numpy as np
import pytest
import soundfile
from openai import APIError, BadRequestError, NotFoundError, OpenAI

from tests.server.toy_speech_models import RATE, run_speech_server, tones

TEXT = "open the pod"


@pytest.fixture(scope="module")
def server():
    with run_speech_server() as started:
        yield started


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def audio_file(text=TEXT, name="WAV", subtype="PCM_16", rate=RATE):
    file = io.BytesIO()
    soundfile.write(file, tones(text, rate), rate, format=name, subtype=subtype)
    return file.getvalue()


def transcribe(openai, data=None, **params):
    file = ("speech.wav", data or audio_file(), "audio/wav")
    return openai.audio.transcriptions.create(model="scribe", file=file, **params)


def transcriber_model(server):
    return server.state.served_models["scribe"].model


@pytest.mark.parametrize(
    ("name", "subtype"), [("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
)
def test_every_format_is_transcribed(openai, name, subtype):
    result = transcribe(openai, audio_file(name=name, subtype=subtype, rate=24_000))
    assert result.text == TEXT
    assert (result.usage.type, result.usage.seconds) == ("duration", pytest.approx(1.2, abs=0.05))


def test_parameters_reach_the_model(server, openai):
    transcribe(openai, language="de", prompt="names: HAL", temperature=0.4)
    request = transcriber_model(server).seen[-1]
    assert (request.language, request.prompt, request.temperature) == ("de", "names: HAL", 0.4)
    assert not request.is_translation
    audio = request.audio
    assert (audio.rate, audio.samples.dtype, len(audio.samples)) == (RATE, np.float32, 12 * RATE // 10)
    with server.client() as client:
        file = {"file": ("speech.wav", audio_file())}
        assert (
            client.post("/v1/audio/translations", data={"model": "scribe"}, files=file).json()["text"] == TEXT.upper()
        )


def test_text_and_subtitles(openai):
    assert transcribe(openai, response_format="text") == TEXT + "\n"
    assert transcribe(openai, response_format="srt") == (
        "1\n00:00:00,000 --> 00:00:00,400\nopen\n\n"
        "2\n00:00:00,500 --> 00:00:00,800\nthe\n\n"
        "3\n00:00:00,900 --> 00:00:01,200\npod\n"
    )
    assert transcribe(openai, response_format="vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.400\nopen\n\n")


def test_verbose_json(openai):
    result = transcribe(openai, response_format="verbose_json", timestamp_granularities=["segment"])
    assert (result.text, result.language, float(result.duration)) == (TEXT, "en", 1.2)
    assert [(segment.id, segment.start, segment.end, segment.text) for segment in result.segments] == [
        (0, 0.0, 0.4, "open"),
        (1, 0.5, 0.8, "the"),
        (2, 0.9, 1.2, "pod"),
    ]
    fields = {"id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio"}
    assert result.segments[0].model_fields_set == fields | {"no_speech_prob"}


def test_words_have_times(openai):
    result = transcribe(
        openai, audio_file("open. pod"), response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert [(word.word, word.start, word.end) for word in result.words] == [("open", 0, 0.5), ("pod", 0.6, 0.9)]
    assert result.segments is None
    both = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
    result = transcribe(openai, **both)
    assert ([word.word for word in result.words], len(result.segments)) == (["open", "the", "pod"], 3)
    assert transcribe(openai, response_format="verbose_json").words is None


def test_captions_of_words(openai):
    captions = transcribe(openai, response_format="srt", timestamp_granularities=["word"])
    assert captions == "1\n00:00:00,000 --> 00:00:01,200\nopen the pod\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": "json"},
        {"response_format": "text"},
        {"response_format": "verbose_json", "stream": True},
        {"response_format": "verbose_json", "prompt": "no words"},
    ],
)
def test_words_that_cannot_be_returned_are_rejected(openai, fields):
    with pytest.raises(BadRequestError) as raised:
        transcribe(openai, timestamp_granularities=["word"], **fields)
    assert raised.value.body["param"] == "timestamp_granularities"


def test_a_model_without_timestamps_has_one_segment(openai):
    result = transcribe(openai, prompt="terse", response_format="verbose_json", language="en")
    assert (result.text, result.language) == (TEXT, "en")
    assert [(segment.start, segment.end) for segment in result.segments] == [(0.0, 1.2)]


def test_a_stream_has_deltas(openai):
    times, events = [], []
    for event in transcribe(openai, stream=True, prompt="slow"):
        times.append(time.monotonic())
        events.append(event)
    *deltas, done = events
    assert "".join(delta.delta for delta in deltas) == TEXT
    assert {delta.type for delta in deltas} == {"transcript.text.delta"}
    assert (done.type, done.text, done.usage.seconds) == ("transcript.text.done", TEXT, 1.2)
    assert times[-1] - times[0] > 0.1


def test_forms_of_voice_agents(server):
    """A file name without extension; repeated fields with and without brackets."""
    fields = {"model": "scribe", "language": "en", "temperature": "0.0", "response_format": "json", "prompt": ""}
    with server.client() as client:
        for name in ("timestamp_granularities[]", "timestamp_granularities"):
            file = {"file": ("audio", audio_file(), "application/octet-stream")}
            response = client.post("/v1/audio/transcriptions", data=fields | {name: ["segment"]}, files=file)
            assert response.status_code == 200
            assert response.json()["text"] == TEXT


def test_languages_and_keywords_reach_the_model(server, openai):
    transcribe(openai, languages=["en"], keywords=["Ruritania", "Strelsau"], prompt="As in the book:")
    request = transcriber_model(server).seen[-1]
    assert (request.language, request.prompt) == ("en", "As in the book: Ruritania, Strelsau")


def test_a_failure_during_a_stream_is_reported(server, openai):
    with pytest.raises(APIError, match="the model failed at this request"):
        list(transcribe(openai, stream=True, prompt="boom"))
    with pytest.raises(APIError) as raised:
        transcribe(openai, prompt="boom")
    assert raised.value.status_code == 500
    assert "secret" not in str(raised.value)
    assert server.wait_until_idle()


def test_a_disconnected_client_stops_transcription(server):
    form = {"model": "scribe", "stream": "true", "prompt": "slow"}
    file = {"file": ("a.wav", audio_file("x" * 1000))}
    with server.client() as client:
        with client.stream("POST", "/v1/audio/transcriptions", data=form, files=file) as response:
            next(response.iter_raw())
            assert server.request_stats()
        assert server.wait_until_idle()


@pytest.mark.parametrize(
    ("params", "error", "param"),
    [
        ({"data": b"not audio"}, BadRequestError, "file"),
        ({"data": b"RIFF\0\0\0\0WAVE"}, BadRequestError, "file"),
        ({"temperature": 1.5}, BadRequestError, "temperature"),
        ({"temperature": float("inf")}, BadRequestError, "temperature"),
        ({"response_format": "diarized_json"}, BadRequestError, "response_format"),
        ({"timestamp_granularities": ["word", "segment"]}, BadRequestError, "timestamp_granularities"),
        ({"include": ["logprobs"]}, BadRequestError, "include"),
        ({"language": "en", "languages": ["en", "de"]}, BadRequestError, "languages"),
    ],
)
def test_invalid_parameters_are_named_and_reach_no_model(server, openai, params, error, param):
    before = len(transcriber_model(server).seen)
    with pytest.raises(error) as raised:
        transcribe(openai, **params)
    assert raised.value.param == param
    assert len(transcriber_model(server).seen) == before


def test_invalid_forms_are_rejected(server, openai):
    with server.client() as client:
        path = "/v1/audio/transcriptions"
        assert client.post(path, json={"model": "scribe"}).status_code == 415
        malformed = client.post(path, content=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"})
        assert malformed.status_code == 400
        assert client.post(path, data={"model": "scribe"}, files={"other": b"x"}).status_code == 400
        two_files = [("file", ("a", audio_file())), ("file", ("b", audio_file()))]
        assert client.post(path, data={"model": "scribe"}, files=two_files).status_code == 400
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str(65 << 20))
    connection.endheaders()
    response = connection.getresponse()  # before any byte of the body is sent
    assert (response.status, json.loads(response.read())["error"]["code"]) == (413, "too_large")
    connection.close()
    with pytest.raises(NotFoundError, match="`talker` is not served at /v1/audio/transcriptions"):
        openai.audio.transcriptions.create(model="talker", file=("speech.wav", audio_file()))
