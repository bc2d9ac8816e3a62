"""Chat completions: a conversation in, the next turn out, whole or as it is written.

A wish that cannot be fulfilled is refused, never ignored. How a model is prompted is its route's business.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from mstar.errors import LoadError
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import AudioInput, ChatRequest, ContentPart, Grammar, ImageInput, Message, Sampling, Tool, ToolCall
from mstar.server.access.slo import as_best_effort
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.inputs.media_inputs import MediaInputs, decode_base64
from mstar.server.openai.completion import ChatCompletion, Choice
from mstar.server.openai.schema import ChatBody, ContentPartParam, MessageParam, NamedTool
from mstar.server.openai.speech import resolve_voice
from mstar.server.state import ServedModel

DEFAULT_MAX_TOKENS = 1024
"""How long an answer may be if the client does not say."""
MAX_MEDIA_PARTS = 32
"""How many pictures and sounds a conversation may hold."""
_TYPE_NAMES: Mapping[type, str] = {str: "text", ImageInput: "pictures", AudioInput: "sound"}
_TYPES_BY_MEDIA_TYPE: Mapping[str, type] = {"text": str, "image": ImageInput, "audio": AudioInput}
"""What files are read as, by what their types begin with."""
_UNSUPPORTED_PART_FIXES = {
    "video_url": "send pictures of a video as image_url, and its sound as audio_url",
    "file": "send file_data, a data: URL of text, a picture or a sound; files are not kept here, and have no file_id",
}
OUTPUT_SAMPLE_RATE_HZ = 24_000
"""At how many samples a second answers are spoken: clients expect no other."""


async def create_completion(exchange: HttpExchange) -> Response:
    """POST /v1/chat/completions."""
    body = await exchange.read_json(ChatBody)
    served = exchange.resolve_model(body.model)
    _reject_unsupported_inputs(body, served)
    chat = await to_chat_request(body, served, MediaInputs(exchange.state.fetcher))
    seeds = [chat.sampling.seed + number for number in range(body.n or 1)]
    is_batch = body.service_tier == "flex"
    if is_batch:
        exchange.context.slo = as_best_effort(exchange.context.slo)
    live = exchange.start_requests(
        served, *(replace(chat, sampling=replace(chat.sampling, seed=seed)) for seed in seeds)
    )
    most = 1 if body.parallel_tool_calls is False else None
    is_call = bool(forced_tools(body))
    answers = [
        Choice(served, chat, audio_encoder=audio_encoder_for(body), is_tool_call=is_call, max_tool_calls=most)
        for _ in seeds
    ]
    tier = {} if body.service_tier is None else {"service_tier": "flex" if is_batch else "default"}
    completion = ChatCompletion({"id": f"chatcmpl-{exchange.context.id}", "model": served.name, **tier}, live, answers)
    if body.stream:
        await completion.wait_first()
        return exchange.event_stream(completion.chunks(include_usage=body.stream_options.include_usage))
    return json_response(await completion.collect())


# ---------------------------------------------------------------- what is asked for
def _reject_unsupported_inputs(body: ChatBody, served: ServedModel) -> None:
    """Refuse what the model does not read, before it is fetched and decoded. It may say what it reads by `input_types()`."""
    reads = served.optional_method("input_types")
    for part in (part for one in body.messages if isinstance(one.content, list) for part in one.content):
        kind = _input_type(part)
        if reads is not None and kind is not None and kind not in reads():
            known = " and ".join(_TYPE_NAMES[one] for one in reads())
            what = f"messages: the model `{served.name}` reads {known}, and no {_TYPE_NAMES[kind]}"
            raise ApiError(400, "unsupported_media", what, param="messages")


def _input_type(part: ContentPartParam) -> type | None:
    """What a part is read as; None if it is not."""
    if part.type == "file":
        return _TYPES_BY_MEDIA_TYPE.get(_media_type_prefix((part.file or {}).get("file_data")))
    return {"text": str, "image_url": ImageInput, "input_audio": AudioInput, "audio_url": AudioInput}.get(part.type)


def _media_type_prefix(url: Any) -> str:
    """What a data: URL says that it holds, up to the slash."""
    return url.removeprefix("data:").partition("/")[0] if isinstance(url, str) and url.startswith("data:") else ""


def _parse_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs is not None:
            raise ApiError(422, "invalid_value", "top_logprobs: logprobs must be true, too", param="top_logprobs")
        return None
    if "audio" in (body.modalities or ()):
        what = "logprobs: these are not given of an answer that is spoken"
        raise ApiError(400, "unsupported_parameter", what, param="logprobs")
    return body.top_logprobs or 0


async def to_chat_request(body: ChatBody, served: ServedModel, media: MediaInputs) -> ChatRequest:
    """The request as a model's route takes it."""
    stochastic = body.temperature is None or body.temperature > 0
    bias = body.logit_bias or {}
    if not all(token.isdecimal() and len(token) < 10 for token in bias):
        raise ApiError(422, "invalid_value", "logit_bias: its keys must be token numbers", param="logit_bias")
    sampling = Sampling(
        max_tokens=body.max_completion_tokens or body.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple((int(token), value) for token, value in bias.items()),
        grammar=to_grammar(body),
        stop_strings=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=_parse_logprobs(body),
        seed=body.seed if body.seed is not None else secrets.randbits(62) if stochastic else 0,
    )
    tools = () if body.tool_choice == "none" else tuple(wish.function for wish in body.tools)
    count = sum(part.type != "text" for one in body.messages if isinstance(one.content, list) for part in one.content)
    if count > MAX_MEDIA_PARTS:
        what = f"messages: they hold {count} pictures and sounds, and may hold {MAX_MEDIA_PARTS}"
        raise ApiError(422, "invalid_value", what, param="messages")
    voice = body.audio.voice if body.audio else ""
    return ChatRequest(
        messages=tuple([await to_message(message, media) for message in body.messages]),
        audio_output="audio" in (body.modalities or ()),
        voice=resolve_voice(voice if isinstance(voice, str) else voice.id, served),
        sampling=sampling,
        tools=tuple(Tool(one.name, one.description, one.parameters) for one in tools),
    )


async def to_message(message: MessageParam, media: MediaInputs) -> Message:
    """What one side said."""
    role = "system" if message.role == "developer" else message.role
    calls = tuple(ToolCall(one.id, one.function.name, one.function.arguments) for one in message.tool_calls)
    return Message(role, await to_parts(message, media), calls, message.tool_call_id)


async def to_parts(message: MessageParam, media: MediaInputs) -> tuple[ContentPart, ...]:
    """What a message consists of."""
    if isinstance(message.content, str):
        return (message.content,)
    return tuple([await _to_part(part, media) for part in message.content or ()])


async def _to_part(part: ContentPartParam, media: MediaInputs) -> ContentPart:
    match part:
        case ContentPartParam(type="text", text=str(text)):
            return text
        case ContentPartParam(type="image_url", image_url={"url": str(url)}):
            return await media.decode_image(await media.read_url(url, "image_url"), "image_url")
        case ContentPartParam(type="input_audio", input_audio={"data": str(data)}):
            return await media.decode_audio(decode_base64(data, "input_audio"), "input_audio")
        case ContentPartParam(type="audio_url", audio_url={"url": str(url)}):
            return await media.decode_audio(await media.read_url(url, "audio_url"), "audio_url")
        case ContentPartParam(type="file", file={"file_data": str(url)}) if _input_type(part) is not None:
            return await _decode_file_part(url, media)
        case _:
            what = _UNSUPPORTED_PART_FIXES.get(part.type, "text, image_url, input_audio, audio_url and file are read")
            what = f"a part of type {part.type!r} cannot be read here, or lacks what belongs to it: {what}"
            raise ApiError(400, "unsupported_media", what, param="messages")


async def _decode_file_part(url: str, media: MediaInputs) -> ContentPart:
    data, kind = await media.read_url(url, "file"), _TYPES_BY_MEDIA_TYPE[_media_type_prefix(url)]
    if kind is ImageInput:
        return await media.decode_image(data, "file")
    if kind is AudioInput:
        return await media.decode_audio(data, "file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ApiError(400, "unsupported_media", "file: its text is not UTF-8", param="messages") from None


def audio_encoder_for(body: ChatBody) -> AudioStreamEncoder | None:
    """How an answer is spoken, if it is to be."""
    if "audio" not in (body.modalities or ()):
        return None
    name = body.audio.format if body.audio else "wav"
    try:
        return AudioStreamEncoder("pcm" if name == "pcm16" else name, OUTPUT_SAMPLE_RATE_HZ)
    except LoadError:
        what = f"audio.format: {name} cannot be made here; wav and pcm16 can"
        raise ApiError(400, "unsupported_parameter", what, param="audio.format") from None


def to_grammar(body: ChatBody) -> Grammar | None:
    """What the answer must look like: a call of a tool, or what the response format says."""
    forced = forced_tools(body)
    if forced:
        by_name = {wish.function.name: wish.function for wish in body.tools}
        calls = [_tool_call_schema(name, by_name[name].parameters) for name in forced]
        return Grammar.json_schema(calls[0] if len(calls) == 1 else {"anyOf": calls})
    wish = body.response_format
    if wish is None or wish.type == "text":
        return None
    if wish.type == "json_object":
        return Grammar.json_schema({"type": "object"})
    if wish.json_schema is None:
        what = "response_format.json_schema: it is needed for the type json_schema"
        raise ApiError(422, "invalid_value", what, param="response_format.json_schema")
    return Grammar.json_schema(wish.json_schema.json_schema)


def forced_tools(body: ChatBody) -> list[str]:
    """The tools one of which must be called; none if the model is free."""
    offered = [wish.function.name for wish in body.tools]
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in offered:
            what = f"tool_choice: there is no tool called {name!r}"
            raise ApiError(422, "invalid_value", what, param="tool_choice")
        return [name]
    if body.tool_choice == "required" and not offered:
        raise ApiError(422, "invalid_value", "tool_choice: a tool is required, and none is given", param="tools")
    return offered if body.tool_choice == "required" else []


def _tool_call_schema(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": parameters or {"type": "object"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
