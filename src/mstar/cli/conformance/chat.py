"""Chat completions, as people call them."""

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


def _complete(site: ConformanceTarget, *, content: Any = "What is the capital of France?", **params: Any) -> Any:
    wishes = {"temperature": 0, "max_tokens": 24, **params}
    messages: Any = [{"role": "user", "content": content}]
    return site.openai.chat.completions.create(model=site.model, messages=messages, **wishes)


def _plain(site: ConformanceTarget) -> str:
    answer = _complete(site)
    (choice,) = answer.choices
    require(choice.message.content, "the answer has no text")
    require(choice.message.role == "assistant", f"the role is {choice.message.role}")
    require(choice.finish_reason in ("stop", "length"), f"it ended by {choice.finish_reason}")
    return choice.message.content


def _streamed(site: ConformanceTarget) -> str:
    whole = _complete(site).choices[0]
    choices = [chunk.choices[0] for chunk in _complete(site, stream=True)]
    text = "".join(choice.delta.content or "" for choice in choices)
    require(text == whole.message.content, f"the stream says {text!r}, and the whole {whole.message.content!r}")
    require(choices[-1].finish_reason == whole.finish_reason, f"the stream ended by {choices[-1].finish_reason}")
    return f"{len(choices)} chunks"


def _usage(site: ConformanceTarget) -> str:
    whole = _complete(site).usage
    require(whole, "the answer has no usage")
    require(whole.prompt_tokens > 0, "no prompt tokens are counted")
    require(whole.total_tokens == whole.prompt_tokens + whole.completion_tokens, "the total is not the sum")
    last = list(_complete(site, stream=True, stream_options={"include_usage": True}))[-1]
    require(not last.choices, "the chunk with the usage has choices")
    require(last.usage and last.usage.total_tokens == whole.total_tokens, "the stream counts otherwise")
    return f"{whole.prompt_tokens} + {whole.completion_tokens} tokens"


def _length(site: ConformanceTarget) -> str:
    answer = _complete(site, max_tokens=3)
    require(answer.choices[0].finish_reason == "length", f"it ended by {answer.choices[0].finish_reason}")
    require(answer.usage is None or answer.usage.completion_tokens == 3, "it is longer or shorter than it may be")
    return ""


def _stop(site: ConformanceTarget) -> str:
    text = _complete(site).choices[0].message.content
    stop = text[len(text) // 2 :][:4]
    choice = _complete(site, stop=[stop]).choices[0]
    require(
        choice.message.content == text[: text.index(stop)], f"stopped at {stop!r}, it says {choice.message.content!r}"
    )
    require(choice.finish_reason == "stop", f"it ended by {choice.finish_reason}")
    return ""


def _multiple_choices(site: ConformanceTarget) -> str:
    choices = _complete(site, n=2, temperature=1, seed=1).choices
    require([choice.index for choice in choices] == [0, 1], f"there are {len(choices)} answers")
    return ""


def _logprobs(site: ConformanceTarget) -> str:
    answer = _complete(site, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    require(len(tokens) == answer.usage.completion_tokens, f"{len(tokens)} tokens have one")
    require(all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in tokens), "they are no log-probabilities")
    return ""


def _tools(site: ConformanceTarget) -> str:
    tool = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITIES}}
    for streams in (False, True):
        answer = _complete(site, tools=[tool], tool_choice="required", max_tokens=64, stream=streams)
        choices = [chunk.choices[0] for chunk in answer] if streams else answer.choices
        deltas = [choice.delta if streams else choice.message for choice in choices]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        require(choices[-1].finish_reason == "tool_calls", f"it ended by {choices[-1].finish_reason}")
        require(calls[0].id and calls[0].function.name == "weather", "another function is called")
        city = json.loads("".join(call.function.arguments for call in calls))["city"]
        require(city in ("Paris", "Rome"), f"the city is {city!r}")
    return ""


def _schema(site: ConformanceTarget) -> str:
    wish = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITIES}}
    text = _complete(site, response_format=wish, max_tokens=64).choices[0].message.content
    require(json.loads(text)["city"] in ("Paris", "Rome"), f"it says {text!r}")
    return text


def _audio_in(site: ConformanceTarget) -> str:
    sound = {"type": "input_audio", "input_audio": {"data": b64encode(samples.wav()).decode(), "format": "wav"}}
    choice = _complete(site, content=[sound]).choices[0]
    require(choice.message.content is not None, "there is no answer")
    return ""


def _image_in(site: ConformanceTarget) -> str:
    url = f"data:image/png;base64,{b64encode(samples.png(200)).decode()}"
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    require(_complete(site, content=content).choices[0].message.content, "there is no answer")
    return ""


def _audio_out(site: ConformanceTarget) -> str:
    answer = _complete(site, modalities=["text", "audio"], audio={"voice": _voice(site), "format": "wav"})
    spoken = answer.choices[0].message.audio
    require(b64decode(spoken.data)[:4] == b"RIFF", "the sound is no WAV file")
    require(spoken.transcript, "there is no transcript")
    return spoken.transcript


def _audio_streamed(site: ConformanceTarget) -> str:
    wish = {"voice": _voice(site), "format": "pcm16"}
    chunks = list(_complete(site, modalities=["text", "audio"], audio=wish, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    parts = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
    require(len({part.id for part in parts}) == 1, "the sound has several ids")
    size = sum(len(b64decode(part.data or "")) for part in parts)
    require(size > 0 and size % 2 == 0, f"{size} bytes are no sound")
    return f"{size / 48_000:.2f} s of sound"


def _voice(site: ConformanceTarget) -> str:
    """A voice that the server knows, or one that people ask for."""
    answer = site.http.get("/v1/audio/voices", params={"model": site.model})
    known = answer.json().get("voices") if answer.status_code == 200 else []
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
