"""Conformance checks of chat completions: streaming, usage, stop, logprobs, tools, structured output, audio, images."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, require

PATH = "/v1/chat/completions"
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def _complete(target: ConformanceTarget, *, content: Any = "What is the capital of France?", **params: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, **params}
    messages: Any = [{"role": "user", "content": content}]
    return target.openai.chat.completions.create(model=target.model, messages=messages, **options)


def _plain(target: ConformanceTarget) -> str:
    response = _complete(target)
    (choice,) = response.choices
    require(choice.message.content, "the response has no text")
    require(choice.message.role == "assistant", f"the role is {choice.message.role}")
    require(choice.finish_reason in ("stop", "length"), f"finish_reason is {choice.finish_reason}")
    return choice.message.content


def _streamed(target: ConformanceTarget) -> str:
    whole = _complete(target).choices[0]
    choices = [chunk.choices[0] for chunk in _complete(target, stream=True)]
    text = "".join(choice.delta.content or "" for choice in choices)
    require(text == whole.message.content, f"the stream has {text!r}, the plain response {whole.message.content!r}")
    require(
        choices[-1].finish_reason == whole.finish_reason, f"finish_reason of the stream is {choices[-1].finish_reason}"
    )
    return f"{len(choices)} chunks"


def _usage(target: ConformanceTarget) -> str:
    whole = _complete(target).usage
    require(whole, "the response has no usage")
    require(whole.prompt_tokens > 0, "prompt_tokens is 0")
    require(whole.total_tokens == whole.prompt_tokens + whole.completion_tokens, "total_tokens is not the sum")
    last = list(_complete(target, stream=True, stream_options={"include_usage": True}))[-1]
    require(not last.choices, "the chunk with usage has choices")
    require(last.usage and last.usage.total_tokens == whole.total_tokens, "the stream reports another usage")
    return f"{whole.prompt_tokens} + {whole.completion_tokens} tokens"


def _length(target: ConformanceTarget) -> str:
    response = _complete(target, max_tokens=3)
    require(response.choices[0].finish_reason == "length", f"finish_reason is {response.choices[0].finish_reason}")
    require(response.usage is None or response.usage.completion_tokens == 3, "completion_tokens is not 3")
    return ""


def _stop(target: ConformanceTarget) -> str:
    text = _complete(target).choices[0].message.content
    stop = text[len(text) // 2 :][:4]
    choice = _complete(target, stop=[stop]).choices[0]
    require(
        choice.message.content == text[: text.index(stop)], f"with stop {stop!r} the text is {choice.message.content!r}"
    )
    require(choice.finish_reason == "stop", f"finish_reason is {choice.finish_reason}")
    return ""


def _multiple_choices(target: ConformanceTarget) -> str:
    choices = _complete(target, n=2, temperature=1, seed=1).choices
    require([choice.index for choice in choices] == [0, 1], f"{len(choices)} choices, expected 2")
    return ""


def _logprobs(target: ConformanceTarget) -> str:
    response = _complete(target, logprobs=True, top_logprobs=2)
    tokens = response.choices[0].logprobs.content
    require(len(tokens) == response.usage.completion_tokens, f"{len(tokens)} tokens have log-probabilities")
    require(all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens), "invalid log-probabilities")
    return ""


def _tools(target: ConformanceTarget) -> str:
    tool = {
        "type": "function",
        "function": {"name": "weather", "description": "weather of a city", "parameters": CITIES},
    }
    for streams in (False, True):
        response = _complete(target, tools=[tool], tool_choice="required", max_tokens=64, stream=streams)
        choices = [chunk.choices[0] for chunk in response] if streams else response.choices
        deltas = [choice.delta if streams else choice.message for choice in choices]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        require(choices[-1].finish_reason == "tool_calls", f"finish_reason is {choices[-1].finish_reason}")
        require(calls[0].id and calls[0].function.name == "weather", "the tool call has another function")
        city = json.loads("".join(call.function.arguments for call in calls))["city"]
        require(city in ("Paris", "Rome"), f"the city is {city!r}")
    return ""


def _schema(target: ConformanceTarget) -> str:
    response_format = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITIES}}
    text = _complete(target, response_format=response_format, max_tokens=64).choices[0].message.content
    require(json.loads(text)["city"] in ("Paris", "Rome"), f"the text is {text!r}")
    return text


def _audio_in(target: ConformanceTarget) -> str:
    audio = {"type": "input_audio", "input_audio": {"data": b64encode(samples.wav()).decode(), "format": "wav"}}
    choice = _complete(target, content=[audio]).choices[0]
    require(choice.message.content is not None, "the response has no content")
    return ""


def _image_in(target: ConformanceTarget) -> str:
    url = f"data:image/png;base64,{b64encode(samples.png(200)).decode()}"
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    require(_complete(target, content=content).choices[0].message.content, "the response has no content")
    return ""


def _audio_out(target: ConformanceTarget) -> str:
    response = _complete(target, modalities=["text", "audio"], audio={"voice": _voice(target), "format": "wav"})
    audio = response.choices[0].message.audio
    require(b64decode(audio.data)[:4] == b"RIFF", "the audio is not a WAV file")
    require(audio.transcript, "the audio has no transcript")
    return audio.transcript


def _audio_streamed(target: ConformanceTarget) -> str:
    audio = {"voice": _voice(target), "format": "pcm16"}
    chunks = list(_complete(target, modalities=["text", "audio"], audio=audio, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    parts = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
    require(len({part.id for part in parts}) == 1, "the audio has several ids")
    size = sum(len(b64decode(part.data or "")) for part in parts)
    require(size > 0 and size % 2 == 0, f"{size} bytes are not 16-bit audio")
    return f"{size / 48_000:.2f} s of audio"


def _voice(target: ConformanceTarget) -> str:
    """The first voice of the model, or an OpenAI preset voice."""
    response = target.http.get("/v1/audio/voices", params={"model": target.model})
    known = response.json().get("voices") if response.status_code == 200 else []
    return known[0] if known else "alloy"


CHECKS = (
    Check(PATH, "plain", _plain),
    Check(PATH, "stream", _streamed),
    Check(PATH, "usage", _usage),
    Check(PATH, "max_tokens", _length),
    Check(PATH, "stop", _stop),
    Check(PATH, "n", _multiple_choices),
    Check(PATH, "logprobs", _logprobs),
    Check(PATH, "tools", _tools),
    Check(PATH, "json_schema", _schema),
    Check(PATH, "input_audio", _audio_in),
    Check(PATH, "image_url", _image_in),
    Check(PATH, "audio out", _audio_out),
    Check(PATH, "audio out, stream", _audio_streamed),
)
