"""Tests of /v1/chat/completions with the OpenAI SDK and over plain HTTP."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from openai import APIError, BadRequestError, InternalServerError, NotFoundError, OpenAI
from PIL import Image

from mstar.requests import Sampling
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(openai, text, **params):
    return openai.chat.completions.create(model="parrot", messages=[{"role": "user", "content": text}], **params)


def test_a_completion_has_text_and_usage(openai):
    response = complete(openai, "Grüße, 世界 🎉")
    assert response.object == "chat.completion"
    assert response.choices[0].message.content == "Grüße, 世界 🎉"
    assert response.choices[0].finish_reason == "stop"
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (11, len("Grüße, 世界 🎉".encode()))


def test_a_stream_splits_only_between_characters(openai):
    chunks = list(complete(openai, "aé世🎉b", stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert texts == ["", "a", "é", "世", "🎉", "b", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 5 + 11
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_truncated_response_has_finish_reason_length(openai):
    response = complete(openai, "abcdef", max_completion_tokens=3)
    assert (response.choices[0].message.content, response.choices[0].finish_reason) == ("abc", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_response_and_the_request(server, openai, stream):
    result = complete(openai, "slow one, two. " + "three " * 200, stop=["two.", "four"], stream=stream)
    text = "".join(c.choices[0].delta.content or "" for c in result) if stream else result.choices[0].message.content
    assert text == "slow one, "
    assert server.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_its_own_seed(openai, stream):
    result = complete(openai, "seed {seed}", n=3, seed=40, stream=stream)
    if not stream:
        assert [choice.message.content for choice in result.choices] == ["seed 40", "seed 41", "seed 42"]
        return
    texts = ["", "", ""]
    for chunk in result:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["seed 40", "seed 41", "seed 42"]


def test_parameters_reach_the_model(server, openai):
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "assistant", "content": None, "tool_calls": [_call("c1", "look", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    params = {"temperature": 0.5, "top_p": 0.25, "presence_penalty": 1, "logit_bias": {"7": -3}, "seed": 9}
    openai.chat.completions.create(model="parrot", messages=messages, **params)
    chat = server.parrot.seen[-1]
    assert [message.role for message in chat.messages] == ["system", "assistant", "tool", "user"]
    assert chat.messages[1].tool_calls[0].name == "look"
    assert chat.messages[2].tool_call_id == "c1"
    assert chat.messages[3].parts == ("a", "b")
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.presence_penalty, sampling.seed) == (0.5, 0.25, 1, 9)
    assert sampling.logit_bias == ((7, -3.0),)


def test_unset_parameters_have_the_defaults_of_the_model(server, openai, monkeypatch):
    def sampling(**params):
        complete(openai, "abc", **params)
        return server.parrot.seen[-1].sampling

    assert (sampling().temperature, sampling().top_p) == (1.0, 1.0)  # those of OpenAI
    assert sampling().seed != sampling().seed
    defaults = Sampling(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.3)
    monkeypatch.setattr(type(server.parrot), "default_sampling", lambda self: defaults, raising=False)
    assert sampling(seed=3) == replace(defaults, max_tokens=1024, seed=3)
    assert sampling(seed=3, temperature=0.2, frequency_penalty=0) == replace(
        defaults, max_tokens=1024, seed=3, temperature=0.2, frequency_penalty=0.0
    )
    assert sampling(temperature=0) == Sampling(max_tokens=1024)  # greedy, without the penalties of the model
    openai.completions.create(model="parrot", prompt="abc", seed=3)
    assert server.parrot.seen[-1].sampling == replace(defaults, max_tokens=16, seed=3)
    assert openai.responses.create(model="parrot", input="abc").temperature == 0.6


def _call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_schema_becomes_a_grammar(server, openai):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    response = complete(openai, '{"city": "Paris"}', response_format=response_format)
    assert json.loads(response.choices[0].message.content) == {"city": "Paris"}
    assert json.loads(server.parrot.seen[-1].sampling.grammar.text) == schema


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_tool_is_called(server, openai, choice, stream):
    text = '{"name": "look", "arguments": {"at": 1}}'
    result = complete(openai, text, tools=[TOOL], tool_choice=choice, stream=stream)
    if stream:
        chunks = list(result)
        calls, reason = chunks[-2].choices[0].delta.tool_calls, chunks[-1].choices[0].finish_reason
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
    else:
        calls, reason = result.choices[0].message.tool_calls, result.choices[0].finish_reason
        assert result.choices[0].message.content is None
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", '{"at":1}')]
    assert reason == "tool_calls"
    assert "look" in server.parrot.seen[-1].sampling.grammar.text


def test_an_optional_tool_does_not_constrain_the_output(server, openai):
    assert complete(openai, "no", tools=[TOOL]).choices[0].message.content == "no"
    assert server.parrot.seen[-1].tools[0].name == "look"
    assert server.parrot.seen[-1].sampling.grammar is None


def part(kind, **fields):
    return {"messages": [{"role": "user", "content": [{"type": kind} | fields]}]}


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"logprobs": True, "modalities": ["text", "audio"]}, "unsupported_parameter"),
        (part("video_url", video_url={"url": "data:,"}), "unsupported_media"),
        (part("audio_url", audio_url={"url": "http://127.0.0.1/x.wav"}), "url_not_allowed"),
        (part("file", file={"file_id": "file-1"}), "unsupported_media"),
        (part("file", file={"file_data": "data:application/pdf;base64,AAAA"}), "unsupported_media"),
        (part("file", file={"file_data": "data:text/plain;base64,/w=="}), "unsupported_media"),
        (part("image_url"), "unsupported_media"),
        (part("image_url", image_url={"url": "http://127.0.0.1/x.png"}), "url_not_allowed"),
        (part("image_url", image_url={"url": "data:image/png;base64,%%%"}), "invalid_base64"),
        (part("image_url", image_url={"url": "data:image/png;base64,AAAA"}), "unsupported_media"),
        (part("input_audio", input_audio={"data": "AAAA", "format": "wav"}), "unsupported_media"),
    ],
)
def test_an_unsupported_part_reaches_no_model(server, params, code):
    seen = len(server.parrot.seen)
    with server.client() as client:
        response = client.post("/v1/chat/completions", json=chat_body("x") | params)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert len(server.parrot.seen) == seen


def test_images_and_audio_are_decoded(server, openai):
    image = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 9)).save(image, "PNG")
    audio = io.BytesIO()
    soundfile.write(audio, np.linspace(-0.5, 0.5, 800), 8000, "PCM_16", format="WAV")
    content = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(image)}"}},
        {"type": "input_audio", "input_audio": {"data": _base64(audio), "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{_base64(audio)}"}},
        {"type": "file", "file": {"file_data": f"data:image/png;base64,{_base64(image)}"}},
        {"type": "file", "file": {"file_data": f"data:audio/wav;base64,{_base64(audio)}", "filename": "a.wav"}},
        {"type": "file", "file": {"file_data": f"data:text/csv;base64,{_base64(io.BytesIO('é'.encode()))}"}},
    ]
    response = openai.chat.completions.create(model="parrot", messages=[{"role": "user", "content": content}])
    assert response.choices[0].message.content == "see <ImageInput><AudioInput><AudioInput><ImageInput><AudioInput>é"
    _, first_image, *audio_parts, file_image, file_audio, _ = server.parrot.seen[-1].messages[0].parts
    for decoded in (first_image, file_image):
        assert decoded.pixels.shape == (2, 3, 3)
        assert decoded.pixels[0, 0].tolist() == [255, 0, 9]
    assert [(part.rate, len(part.samples)) for part in (*audio_parts, file_audio)] == [(8000, 800)] * 3


def _base64(file):
    return base64.b64encode(file.getvalue()).decode()


AUDIO_PARAMS = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "pcm16"}}


def test_a_response_with_audio(openai):
    message = complete(openai, "ab", **AUDIO_PARAMS).choices[0].message
    assert (message.content, message.audio.transcript) == (None, "ab")
    samples = np.frombuffer(base64.b64decode(message.audio.data), "<i2")
    assert len(samples) == 480
    usage = complete(openai, "ab", **AUDIO_PARAMS).usage
    assert usage.completion_tokens_details.audio_tokens == 1  # 20 ms, rounded up to one token of 50 ms
    assert (usage.completion_tokens, usage.total_tokens) == (3, 5)
    assert np.allclose(samples[[0, 240]] / 32767, [97 / 256, 98 / 256], atol=1e-4)
    wav = (
        complete(openai, "ab", modalities=["text", "audio"], audio={"voice": "any", "format": "wav"}).choices[0].message
    )
    assert base64.b64decode(wav.audio.data).startswith(b"RIFF")


def test_audio_is_streamed_in_deltas(openai):
    deltas = [chunk.choices[0].delta.model_dump() for chunk in complete(openai, "ab", stream=True, **AUDIO_PARAMS)]
    audio = [delta["audio"] for delta in deltas if delta.get("audio")]
    assert len({delta["id"] for delta in audio}) == 1
    assert "".join(delta.get("transcript") or "" for delta in audio) == "ab"
    assert len(b"".join(base64.b64decode(delta.get("data") or "") for delta in audio)) == 960


@pytest.mark.parametrize(("voice", "code"), [("lazy", "unsupported_parameter"), ("mute", "unsupported")])
def test_audio_output_without_audio_is_an_error(server, voice, code):
    with server.client() as client:
        params = {"modalities": ["text", "audio"], "audio": {"voice": {"id": voice}, "format": "wav"}}
        response = client.post("/v1/chat/completions", json=chat_body("x") | params)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert "secret" not in response.text


def test_a_failure_during_a_stream_is_an_error_event(server, openai):
    with server.client() as client:
        text = client.post("/v1/chat/completions", json=chat_body(f"ab{BOOM}", stream=True)).text
    events = text.strip().split("\n\n")
    assert events[-1].startswith("event: error\ndata: ")
    assert json.loads(events[-1].partition("data: ")[2])["error"]["code"] == "model_error"
    assert "[DONE]" not in text
    assert '"finish_reason":"stop"' not in text
    assert "secret" not in text
    with pytest.raises(APIError, match="failed"):
        list(complete(openai, f"ab{BOOM}", stream=True))
    with pytest.raises(InternalServerError) as error:
        complete(openai, f"ab{BOOM}")
    assert "secret" not in str(error.value)
    assert error.value.response.headers["x-should-retry"] == "false"


def test_a_failure_before_the_first_output_sets_the_status(openai):
    with pytest.raises(InternalServerError):
        complete(openai, BOOM, stream=True)


def test_an_unknown_or_unsuitable_model_is_rejected(openai):
    with pytest.raises(NotFoundError, match="did you mean `parrot`"):
        openai.chat.completions.create(model="parot", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(NotFoundError, match="served at `/v1/embeddings`"):
        openai.chat.completions.create(model="vectors", messages=[{"role": "user", "content": "x"}])


def test_a_missing_json_schema_is_reported(openai):
    response_format = {"type": "json_schema"}
    with pytest.raises(BadRequestError, match="json_schema"):
        complete(openai, "x", response_format=response_format)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}, {"text": "x"}]}]}, "messages[0].content[1].type"),
        ({"stop": [""]}, "stop[0]"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"logit_bias": {"7": 101}}, "logit_bias"),
    ],
)
def test_an_invalid_field_gets_400_and_is_named_as_openai_names_it(openai, fields, param):
    with pytest.raises(BadRequestError) as error:
        openai.chat.completions.create(**chat_body("x") | fields)
    assert (error.value.code, error.value.param) == ("invalid_value", param)


def test_max_tokens_are_clipped_to_the_context(server, openai):
    for params in ({"max_tokens": 1_000_000}, {"max_completion_tokens": 1_000_000}):
        assert complete(openai, "abc", **params).choices[0].message.content == "abc"
        assert server.parrot.seen[-1].sampling.max_tokens == 8192
    openai.completions.create(model="parrot", prompt="abc", max_tokens=1_000_000)
    assert server.parrot.seen[-1].sampling.max_tokens == 8192


def test_audio_without_its_encoder_gets_501_with_the_command(server, monkeypatch):
    monkeypatch.setattr("mstar.media.audio.find_spec", lambda name: None)
    params = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "mp3"}}
    with server.client() as client:
        response = client.post("/v1/chat/completions", json=chat_body("x") | params)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (501, "missing_extra", "audio.format")
    assert "fix: pip install 'mstar-serve[media]' on the server, or use wav" in error["message"]
    assert response.headers["x-should-retry"] == "false"
