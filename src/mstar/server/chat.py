"""Chat completions: a conversation in, the next turn out, whole or as it is written.

A wish that cannot be fulfilled is refused, never ignored. How a model is prompted is its route's business.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from mstar.asks import Chat, Part, Picture, Sound, Tool, ToolCall, Turn
from mstar.errors import LoadError
from mstar.media.audio import Track
from mstar.nn.grammar import Grammar
from mstar.nn.sampling import Sampling
from mstar.server.completion import Answer, Completion
from mstar.server.door import Served
from mstar.server.files import Files, file_of
from mstar.server.pacing import as_batch
from mstar.server.refusals import Refusal
from mstar.server.schema import ChatBody, ContentPart, Message, NamedTool
from mstar.server.speech import voice_of
from mstar.server.visit import Visit, answered

MAX_TOKENS = 1024
"""How long an answer may be if the client does not say."""
MAX_FILES = 32
"""How many pictures and sounds a conversation may hold."""
_NAMES: Mapping[type, str] = {str: "text", Picture: "pictures", Sound: "sound"}
_FILES: Mapping[str, type] = {"text": str, "image": Picture, "audio": Sound}
"""What files are read as, by what their types begin with."""
_UNREAD = {
    "video_url": "send pictures of a video as image_url, and its sound as audio_url",
    "file": "send file_data, a data: URL of text, a picture or a sound; files are not kept here, and have no file_id",
}
RATE = 24_000
"""At how many samples a second answers are spoken: clients expect no other."""


async def complete(visit: Visit) -> Response:
    """POST /v1/chat/completions."""
    body = await visit.read(ChatBody)
    served = visit.find(body.model)
    _refuse_unread(body, served)
    chat = await chat_of(body, served, Files(visit.door.fetcher))
    seeds = [chat.sampling.seed + number for number in range(body.n or 1)]
    is_batch = body.service_tier == "flex"
    if is_batch:
        visit.passage.pace = as_batch(visit.passage.pace)
    live = visit.open(served, *(replace(chat, sampling=replace(chat.sampling, seed=seed)) for seed in seeds))
    most = 1 if body.parallel_tool_calls is False else None
    is_call = bool(forced_tools(body))
    answers = [Answer(served, chat, track=track_of(body), is_call=is_call, most_calls=most) for _ in seeds]
    tier = {} if body.service_tier is None else {"service_tier": "flex" if is_batch else "default"}
    completion = Completion({"id": f"chatcmpl-{visit.passage.id}", "model": served.name, **tier}, live, answers)
    if body.stream:
        await completion.begun()
        return visit.events(completion.chunks(has_usage=body.stream_options.include_usage))
    return answered(await completion.whole())


# ---------------------------------------------------------------- what is asked for
def _refuse_unread(body: ChatBody, served: Served) -> None:
    """Refuse what the model does not read, before it is fetched and decoded. It may say what it reads by `reads()`."""
    reads = served.own("reads")
    for part in (part for one in body.messages if isinstance(one.content, list) for part in one.content):
        kind = _kind(part)
        if reads is not None and kind is not None and kind not in reads():
            known = " and ".join(_NAMES[one] for one in reads())
            what = f"messages: the model `{served.name}` reads {known}, and no {_NAMES[kind]}"
            raise Refusal(400, "unsupported_media", what, param="messages")


def _kind(part: ContentPart) -> type | None:
    """What a part is read as; None if it is not."""
    if part.type == "file":
        return _FILES.get(_media_type((part.file or {}).get("file_data")))
    return {"text": str, "image_url": Picture, "input_audio": Sound, "audio_url": Sound}.get(part.type)


def _media_type(url: Any) -> str:
    """What a data: URL says that it holds, up to the slash."""
    return url.removeprefix("data:").partition("/")[0] if isinstance(url, str) and url.startswith("data:") else ""


def _logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs is not None:
            raise Refusal(422, "invalid_value", "top_logprobs: logprobs must be true, too", param="top_logprobs")
        return None
    if "audio" in (body.modalities or ()):
        what = "logprobs: these are not given of an answer that is spoken"
        raise Refusal(400, "unsupported_parameter", what, param="logprobs")
    return body.top_logprobs or 0


async def chat_of(body: ChatBody, served: Served, files: Files) -> Chat:
    """The request as a model's route takes it."""
    stochastic = body.temperature is None or body.temperature > 0
    bias = body.logit_bias or {}
    if not all(token.isdecimal() and len(token) < 10 for token in bias):
        raise Refusal(422, "invalid_value", "logit_bias: its keys must be token numbers", param="logit_bias")
    sampling = Sampling(
        max_tokens=body.max_completion_tokens or body.max_tokens or MAX_TOKENS,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple((int(token), value) for token, value in bias.items()),
        grammar=grammar_of(body),
        stop_texts=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=_logprobs(body),
        seed=body.seed if body.seed is not None else secrets.randbits(62) if stochastic else 0,
    )
    tools = () if body.tool_choice == "none" else tuple(wish.function for wish in body.tools)
    count = sum(part.type != "text" for one in body.messages if isinstance(one.content, list) for part in one.content)
    if count > MAX_FILES:
        what = f"messages: they hold {count} pictures and sounds, and may hold {MAX_FILES}"
        raise Refusal(422, "invalid_value", what, param="messages")
    voice = body.audio.voice if body.audio else ""
    return Chat(
        turns=tuple([await turn_of(message, files) for message in body.messages]),
        speaks="audio" in (body.modalities or ()),
        voice=voice_of(voice if isinstance(voice, str) else voice.id, served),
        sampling=sampling,
        tools=tuple(Tool(one.name, one.description, one.parameters) for one in tools),
    )


async def turn_of(message: Message, files: Files) -> Turn:
    """What one side said."""
    role = "system" if message.role == "developer" else message.role
    calls = tuple(ToolCall(one.id, one.function.name, one.function.arguments) for one in message.tool_calls)
    return Turn(role, await parts_of(message, files), calls, message.tool_call_id)


async def parts_of(message: Message, files: Files) -> tuple[Part, ...]:
    """What a message consists of."""
    if isinstance(message.content, str):
        return (message.content,)
    return tuple([await _part_of(part, files) for part in message.content or ()])


async def _part_of(part: ContentPart, files: Files) -> Part:
    match part:
        case ContentPart(type="text", text=str(text)):
            return text
        case ContentPart(type="image_url", image_url={"url": str(url)}):
            return await files.picture(await files.at(url, "image_url"), "image_url")
        case ContentPart(type="input_audio", input_audio={"data": str(data)}):
            return await files.sound(file_of(data, "input_audio"), "input_audio")
        case ContentPart(type="audio_url", audio_url={"url": str(url)}):
            return await files.sound(await files.at(url, "audio_url"), "audio_url")
        case ContentPart(type="file", file={"file_data": str(url)}) if _kind(part) is not None:
            return await _file_part(url, files)
        case _:
            what = _UNREAD.get(part.type, "text, image_url, input_audio, audio_url and file are read")
            what = f"a part of type {part.type!r} cannot be read here, or lacks what belongs to it: {what}"
            raise Refusal(400, "unsupported_media", what, param="messages")


async def _file_part(url: str, files: Files) -> Part:
    data, kind = await files.at(url, "file"), _FILES[_media_type(url)]
    if kind is Picture:
        return await files.picture(data, "file")
    if kind is Sound:
        return await files.sound(data, "file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "unsupported_media", "file: its text is not UTF-8", param="messages") from None


def track_of(body: ChatBody) -> Track | None:
    """How an answer is spoken, if it is to be."""
    if "audio" not in (body.modalities or ()):
        return None
    name = body.audio.format if body.audio else "wav"
    try:
        return Track("pcm" if name == "pcm16" else name, RATE)
    except LoadError:
        what = f"audio.format: {name} cannot be made here; wav and pcm16 can"
        raise Refusal(400, "unsupported_parameter", what, param="audio.format") from None


def grammar_of(body: ChatBody) -> Grammar | None:
    """What the answer must look like: a call of a tool, or what the response format says."""
    forced = forced_tools(body)
    if forced:
        by_name = {wish.function.name: wish.function for wish in body.tools}
        calls = [_call_schema(name, by_name[name].parameters) for name in forced]
        return Grammar.json_schema(calls[0] if len(calls) == 1 else {"anyOf": calls})
    wish = body.response_format
    if wish is None or wish.type == "text":
        return None
    if wish.type == "json_object":
        return Grammar.json_schema({"type": "object"})
    if wish.json_schema is None:
        what = "response_format.json_schema: it is needed for the type json_schema"
        raise Refusal(422, "invalid_value", what, param="response_format.json_schema")
    return Grammar.json_schema(wish.json_schema.json_schema)


def forced_tools(body: ChatBody) -> list[str]:
    """The tools one of which must be called; none if the model is free."""
    offered = [wish.function.name for wish in body.tools]
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in offered:
            what = f"tool_choice: there is no tool called {name!r}"
            raise Refusal(422, "invalid_value", what, param="tool_choice")
        return [name]
    if body.tool_choice == "required" and not offered:
        raise Refusal(422, "invalid_value", "tool_choice: a tool is required, and none is given", param="tools")
    return offered if body.tool_choice == "required" else []


def _call_schema(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": parameters or {"type": "object"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
