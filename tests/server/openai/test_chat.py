"""Chat completions as the official client reads them, and as they are on the wire."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile
from openai import APIError, BadRequestError, InternalServerError, NotFoundError, OpenAI
from PIL import Image

from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(openai, text, **how):
    return openai.chat.completions.create(model="parrot", messages=[{"role": "user", "content": text}], **how)


def test_a_whole_answer_with_real_counts(openai):
    answer = ask(openai, "Grüße, 世界 🎉")
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Grüße, 世界 🎉"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, len("Grüße, 世界 🎉".encode()))


def test_a_stream_has_whole_characters_only(openai):
    chunks = list(ask(openai, "aé世🎉b", stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert texts == ["", "a", "é", "世", "🎉", "b", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 5 + 11
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_cut_answer_says_so(openai):
    answer = ask(openai, "abcdef", max_completion_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_an_answer_and_the_work(server, openai, stream):
    got = ask(openai, "slow one, two. " + "three " * 200, stop=["two.", "four"], stream=stream)
    text = "".join(c.choices[0].delta.content or "" for c in got) if stream else got.choices[0].message.content
    assert text == "slow one, "
    assert server.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_have_seeds_of_their_own(openai, stream):
    got = ask(openai, "seed {seed}", n=3, seed=40, stream=stream)
    if not stream:
        assert [choice.message.content for choice in got.choices] == ["seed 40", "seed 41", "seed 42"]
        return
    texts = ["", "", ""]
    for chunk in got:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["seed 40", "seed 41", "seed 42"]


def test_parameters_reach_the_model(server, openai):
    turns = [
        {"role": "developer", "content": "be short"},
        {"role": "assistant", "content": None, "tool_calls": [_call("c1", "look", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    wishes = {"temperature": 0.5, "top_p": 0.25, "presence_penalty": 1, "logit_bias": {"7": -3}, "seed": 9}
    openai.chat.completions.create(model="parrot", messages=turns, **wishes)
    chat = server.parrot.seen[-1]
    assert [turn.role for turn in chat.messages] == ["system", "assistant", "tool", "user"]
    assert chat.messages[1].tool_calls[0].name == "look"
    assert chat.messages[2].tool_call_id == "c1"
    assert chat.messages[3].parts == ("a", "b")
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.presence_penalty, sampling.seed) == (0.5, 0.25, 1, 9)
    assert sampling.logit_bias == ((7, -3.0),)


def _call(number, name, arguments):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_schema_becomes_a_grammar(server, openai):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wish = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    answer = ask(openai, '{"city": "Paris"}', response_format=wish)
    assert json.loads(answer.choices[0].message.content) == {"city": "Paris"}
    assert json.loads(server.parrot.seen[-1].sampling.grammar.text) == schema


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is(server, openai, choice, stream):
    text = '{"name": "look", "arguments": {"at": 1}}'
    got = ask(openai, text, tools=[TOOL], tool_choice=choice, stream=stream)
    if stream:
        chunks = list(got)
        calls, reason = chunks[-2].choices[0].delta.tool_calls, chunks[-1].choices[0].finish_reason
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
    else:
        calls, reason = got.choices[0].message.tool_calls, got.choices[0].finish_reason
        assert got.choices[0].message.content is None
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", '{"at":1}')]
    assert reason == "tool_calls"
    assert "look" in server.parrot.seen[-1].sampling.grammar.text


def test_a_tool_that_may_be_called_leaves_the_model_free(server, openai):
    assert ask(openai, "no", tools=[TOOL]).choices[0].message.content == "no"
    assert server.parrot.seen[-1].tools[0].name == "look"
    assert server.parrot.seen[-1].sampling.grammar is None


def part(kind, **more):
    return {"messages": [{"role": "user", "content": [{"type": kind} | more]}]}


@pytest.mark.parametrize(
    ("more", "code"),
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
def test_what_cannot_be_read_reaches_no_model(server, more, code):
    seen = len(server.parrot.seen)
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=chat_body("x") | more)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert len(server.parrot.seen) == seen


def test_pictures_and_sounds_are_decoded(server, openai):
    picture = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 9)).save(picture, "PNG")
    sound = io.BytesIO()
    soundfile.write(sound, np.linspace(-0.5, 0.5, 800), 8000, "PCM_16", format="WAV")
    content = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_coded(picture)}"}},
        {"type": "input_audio", "input_audio": {"data": _coded(sound), "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{_coded(sound)}"}},
        {"type": "file", "file": {"file_data": f"data:image/png;base64,{_coded(picture)}"}},
        {"type": "file", "file": {"file_data": f"data:audio/wav;base64,{_coded(sound)}", "filename": "a.wav"}},
        {"type": "file", "file": {"file_data": f"data:text/csv;base64,{_coded(io.BytesIO('é'.encode()))}"}},
    ]
    answer = openai.chat.completions.create(model="parrot", messages=[{"role": "user", "content": content}])
    assert answer.choices[0].message.content == "see <ImageInput><AudioInput><AudioInput><ImageInput><AudioInput>é"
    _, pixels, *heard, again, last, _ = server.parrot.seen[-1].messages[0].parts
    for one in (pixels, again):
        assert one.pixels.shape == (2, 3, 3)
        assert one.pixels[0, 0].tolist() == [255, 0, 9]
    assert [(one.rate, len(one.samples)) for one in (*heard, last)] == [(8000, 800)] * 3


def _coded(file):
    return base64.b64encode(file.getvalue()).decode()


SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "pcm16"}}


def test_an_answer_is_spoken_too(openai):
    spoken = ask(openai, "ab", **SPOKEN).choices[0].message
    assert (spoken.content, spoken.audio.transcript) == (None, "ab")
    samples = np.frombuffer(base64.b64decode(spoken.audio.data), "<i2")
    assert len(samples) == 480
    told = ask(openai, "ab", **SPOKEN).usage
    assert told.completion_tokens_details.audio_tokens == 1  # a twentieth of a second, begun
    assert (told.completion_tokens, told.total_tokens) == (3, 5)
    assert np.allclose(samples[[0, 240]] / 32767, [97 / 256, 98 / 256], atol=1e-4)
    wav = ask(openai, "ab", modalities=["text", "audio"], audio={"voice": "any", "format": "wav"}).choices[0].message
    assert base64.b64decode(wav.audio.data).startswith(b"RIFF")


def test_an_answer_is_spoken_as_it_is_made(openai):
    deltas = [chunk.choices[0].delta.model_dump() for chunk in ask(openai, "ab", stream=True, **SPOKEN)]
    spoken = [delta["audio"] for delta in deltas if delta.get("audio")]
    assert len({one["id"] for one in spoken}) == 1
    assert "".join(one.get("transcript") or "" for one in spoken) == "ab"
    assert len(b"".join(base64.b64decode(one.get("data") or "") for one in spoken)) == 960


@pytest.mark.parametrize(("voice", "code"), [("lazy", "unsupported_parameter"), ("mute", "unsupported")])
def test_a_model_that_does_not_speak_is_not_passed_off_as_one_that_does(server, voice, code):
    with server.client() as client:
        wish = {"modalities": ["text", "audio"], "audio": {"voice": {"id": voice}, "format": "wav"}}
        answer = client.post("/v1/chat/completions", json=chat_body("x") | wish)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert "secret" not in answer.text


def test_a_failure_in_mid_stream_is_an_event_and_not_an_end(server, openai):
    with server.client() as client:
        text = client.post("/v1/chat/completions", json=chat_body(f"ab{BOOM}", stream=True)).text
    events = text.strip().split("\n\n")
    assert events[-1].startswith("event: error\ndata: ")
    assert json.loads(events[-1].partition("data: ")[2])["error"]["code"] == "model_error"
    assert "[DONE]" not in text
    assert '"finish_reason":"stop"' not in text
    assert "secret" not in text
    with pytest.raises(APIError, match="failed"):
        list(ask(openai, f"ab{BOOM}", stream=True))
    with pytest.raises(InternalServerError) as error:
        ask(openai, f"ab{BOOM}")
    assert "secret" not in str(error.value)
    assert error.value.response.headers["x-should-retry"] == "false"


def test_a_failure_before_anything_was_said_is_a_status(openai):
    with pytest.raises(InternalServerError):
        ask(openai, BOOM, stream=True)


def test_other_models_and_names_are_told_apart(openai):
    with pytest.raises(NotFoundError, match="did you mean `parrot`"):
        openai.chat.completions.create(model="parot", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(NotFoundError, match="served at `/v1/embeddings`"):
        openai.chat.completions.create(model="vectors", messages=[{"role": "user", "content": "x"}])


def test_a_bad_schema_of_the_client_is_told(openai):
    wish = {"type": "json_schema"}
    with pytest.raises((BadRequestError, APIError), match="json_schema"):
        ask(openai, "x", response_format=wish)
