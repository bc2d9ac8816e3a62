"""Chat completions endpoint (OpenAI `/v1/chat/completions`): request parsing and validation.

Converts the body to a `ChatRequest` (messages, media parts, sampling parameters, tools, grammar) and starts it. A
parameter that the server or the model does not support is an error, never silently ignored. The response is built by
`completion`; the prompt template belongs to the model's route.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.responses import Response

from mstar.errors import MissingExtra
from mstar.frontend.response_stream import ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import AudioInput, ChatRequest, ContentPart, Grammar, ImageInput, Message, Sampling, Tool, ToolCall
from mstar.server.access.slo import as_best_effort
from mstar.server.errors import ApiError, missing_extra_error
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.inputs.media_inputs import MediaInputs, decode_base64
from mstar.server.openai.completion import ChatCompletion, Choice, CompletionReader
from mstar.server.openai.schema import (
    ChatBody,
    ContentPartParam,
    McpTool,
    McpToolFilter,
    MessageParam,
    NamedTool,
    SamplingParams,
    ToolParam,
)
from mstar.server.openai.schema_limits import check_schema
from mstar.server.openai.speech import resolve_voice
from mstar.server.state import ServedModel
from mstar.server.tools.server_tools import ServerTools, Toolset, ToolsetRequest, check_names
from mstar.server.tools.tool_rounds import ToolLoop, ToolRounds

DEFAULT_MAX_TOKENS = 1024
"""Maximum output tokens if the request sets neither `max_completion_tokens` nor `max_tokens`."""
MAX_MEDIA_PARTS = 32
"""Maximum images, audio clips and files in the messages of one request."""
_TYPE_NAMES: Mapping[type, str] = {str: "text", ImageInput: "images", AudioInput: "audio"}
_TYPES_BY_MEDIA_TYPE: Mapping[str, type] = {"text": str, "image": ImageInput, "audio": AudioInput}
"""Input type of a file part by the first half of its media type."""
_UNSUPPORTED_PART_FIXES = {
    "video_url": "send frames of the video as image_url and its audio track as audio_url",
    "file": "send file_data, a data: URL of text, an image or audio; uploaded files (file_id) are not supported",
}
_DEFAULT_PART_FIX = "send a text, image_url, input_audio, audio_url or file part with its content field"
MIN_OUTLINE_BYTES = 1 << 20
"""Minimum bytes of a body whose texts are measured before it is parsed."""
MAX_JSON_EXPANSION = 6
"""Maximum bytes of JSON for a byte of text: `\\u0000`."""
OUTPUT_SAMPLE_RATE_HZ = 24_000
"""Sample rate of audio in chat responses; OpenAI clients assume it."""


async def create_completion(exchange: HttpExchange) -> Response:
    """POST /v1/chat/completions."""
    await reject_long_text(exchange)
    body = await exchange.read_json(ChatBody)
    _reject_mixed_tools(body)
    tier = apply_service_tier(exchange, body.service_tier)
    prepared = await prepare_chat(exchange, body, requested_toolsets(body))
    reader = prepared.start(functools.partial(exchange.start_requests, prepared.served))
    common_fields = {"id": f"chatcmpl-{exchange.context.id}", "model": prepared.served.name, **tier}
    completion = ChatCompletion(common_fields, reader)
    if body.stream:
        await reader.wait_first()
        chunks = completion.chunks(include_usage=body.stream_options.include_usage)
        return exchange.event_stream(chunks, attach=completion.attach)
    return json_response(await completion.collect())


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat body as requests for its model, one per choice."""

    served: ServedModel
    requests: list[ChatRequest]
    choices: list[Choice]
    loop: ToolLoop | None
    """The tool loop, if the server calls tools for the model."""

    @property
    def toolsets(self) -> Sequence[Toolset]:
        """The toolsets of MCP servers that the request uses."""
        return self.loop.server_tools.toolsets if self.loop else ()

    def start(self, start_requests: Callable[..., ResponseStream]) -> CompletionReader:
        """Start the requests, and read their outputs. `start_requests` is that of the exchange, for the model."""
        stream = start_requests(*self.requests)
        if self.loop is None:
            return CompletionReader(stream, self.choices, len(self.choices))
        return ToolRounds(stream, self.requests[0], self.choices[0], self.loop, start_requests)


async def prepare_chat(exchange: HttpExchange, body: ChatBody, toolsets: Sequence[ToolsetRequest]) -> PreparedChat:
    """Validate a chat body, decode its media and make its requests. Nothing is submitted. Raises ApiError."""
    served = exchange.resolve_model(body.model)
    _reject_unsupported_inputs(body, served)
    server_tools = await ServerTools.open(exchange.state.mcp_servers, toolsets) if toolsets else None
    functions = client_functions(body)
    tools = (*functions, *(server_tools.tools if server_tools else ()))
    check_names(tools, "tools")
    chat = await to_chat_request(body, tools, served, exchange.media_inputs())
    seeds = [chat.sampling.seed + number for number in range(body.n or 1)]
    requests = [chat, *(replace(chat, sampling=replace(chat.sampling, seed=seed)) for seed in seeds[1:])]
    make_choice = functools.partial(Choice, served, max_tool_calls=1 if body.parallel_tool_calls is False else None)
    is_tool_call = bool(forced_tools(body, tools))
    choices = [
        make_choice(
            chat,
            audio_encoder=audio_encoder_for(body),
            is_tool_call=is_tool_call,
            call_seed=f"{exchange.context.id}/{index}",
        )
        for index in range(len(seeds))
    ]
    if server_tools is None:
        return PreparedChat(served, requests, choices, None)
    loop = ToolLoop(
        server_tools,
        functions,
        to_response_grammar(body),
        lambda request, number: make_choice(
            request, audio_encoder=None, is_tool_call=False, call_seed=f"{exchange.context.id}/0/{number}"
        ),
        exchange.state.limits.max_tool_rounds,
        exchange.state.limits.request_timeout_s,
        exchange.context.record_effect,
    )
    return PreparedChat(served, requests, choices, loop)


# ---------------------------------------------------------------- tools
def client_functions(body: ChatBody) -> tuple[Tool, ...]:
    """Functions of the client that a body offers to the model."""
    functions = (tool.function for tool in body.tools if isinstance(tool, ToolParam))
    return tuple(Tool(function.name, function.description, function.parameters) for function in functions)


def requested_toolsets(body: ChatBody) -> list[ToolsetRequest]:
    """The MCP servers that a body names. Raises ApiError if it cannot be combined with other parameters."""
    toolsets = [
        ToolsetRequest(tool.server_label, f"tools[{index}]", to_tool_names(tool))
        for index, tool in enumerate(body.tools)
        if isinstance(tool, McpTool)
    ]
    if toolsets and (body.n or 1) > 1:
        message = f"n: {body.n} choices would call the tools of MCP servers {body.n} times. fix: omit n"
        raise ApiError(400, "unsupported_parameter", message, param="n")
    if toolsets and "audio" in (body.modalities or ()):
        message = 'modalities: tools of MCP servers need text. fix: set modalities to ["text"]'
        raise ApiError(400, "unsupported_parameter", message, param="modalities")
    return toolsets


def _reject_mixed_tools(body: ChatBody) -> None:
    """Reject functions beside tools of MCP servers: a chat message has no place for the calls that the server made."""
    if len({tool.type for tool in body.tools}) > 1:
        message = "tools: functions and tools of MCP servers cannot be combined here. fix: use /v1/responses"
        raise ApiError(400, "unsupported_parameter", message, param="tools")


def to_tool_names(tool: McpTool) -> frozenset[str] | None:
    """Names in `allowed_tools` of an MCP tool; None if it has none."""
    allowed = tool.allowed_tools.tool_names if isinstance(tool.allowed_tools, McpToolFilter) else tool.allowed_tools
    return None if allowed is None else frozenset(allowed)


def apply_service_tier(exchange: HttpExchange, service_tier: str | None) -> dict[str, str]:
    """Apply `service_tier` to the SLO of a request. Returns the field of the response; empty if none was requested."""
    if service_tier == "flex":
        exchange.context.slo = as_best_effort(exchange.context.slo)
    return {} if service_tier is None else {"service_tier": "flex" if service_tier == "flex" else "default"}


# ---------------------------------------------------------------- request parsing
class MessageOutline(msgspec.Struct):
    """The fields of a message or item that can have long text."""

    content: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")
    """Result of a function, in /v1/responses."""


class ChatOutline(msgspec.Struct):
    """The fields of a body that tell how much text it has. The others are skipped, not decoded."""

    model: str = ""
    messages: list[MessageOutline] | str = []


async def reject_long_text(exchange: HttpExchange, outline_type: type[ChatOutline] = ChatOutline) -> None:
    """Reject text for a text model that is too long as JSON already. To parse all of it would block the event loop."""
    content = await exchange.body()
    if len(content) < MIN_OUTLINE_BYTES:
        return
    try:
        outline = msgspec.json.decode(content, type=outline_type)
    except (msgspec.MsgspecError, RecursionError):
        return  # the schema reports what is wrong
    served = exchange.state.find_model(outline.model)
    input_types = served and served.optional_method("input_types")
    if served is not None and input_types is not None and set(input_types()) == {str}:
        if isinstance(outline.messages, str):
            size = len(outline.messages)
        else:
            raw = (part for message in outline.messages for part in (message.content, message.output))
            size = sum(len(memoryview(part)) for part in raw) // MAX_JSON_EXPANSION
        exchange.state.text_budget.check_size(served.model, size)


def _content_parts(body: ChatBody) -> Iterator[ContentPartParam]:
    for message in body.messages:
        if isinstance(message.content, list):
            yield from message.content


def _reject_unsupported_inputs(body: ChatBody, served: ServedModel) -> None:
    """Reject inputs that are not in the model's `input_types()` before they are fetched and decoded."""
    input_types = served.optional_method("input_types")
    if input_types is None:
        return
    supported = input_types()
    for part in _content_parts(body):
        kind = _input_type(part)
        if kind is not None and kind not in supported:
            names = " and ".join(_TYPE_NAMES[input_type] for input_type in supported)
            message = (
                f"messages: the model `{served.name}` does not accept {_TYPE_NAMES[kind]}, only {names}. "
                f"fix: remove the {part.type} part or use another model"
            )
            raise ApiError(400, "unsupported_media", message, param="messages")


def _input_type(part: ContentPartParam) -> type | None:
    """Input type of a part, or None if parts of this type are not supported."""
    if part.type == "file":
        return _TYPES_BY_MEDIA_TYPE.get(_media_type_prefix((part.file or {}).get("file_data")))
    return {"text": str, "image_url": ImageInput, "input_audio": AudioInput, "audio_url": AudioInput}.get(part.type)


def _media_type_prefix(url: Any) -> str:
    """Media type of a data: URL up to the slash, or an empty string."""
    return url.removeprefix("data:").partition("/")[0] if isinstance(url, str) and url.startswith("data:") else ""


def _parse_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs is not None:
            message = f"top_logprobs: {body.top_logprobs} requires logprobs. fix: set logprobs to true"
            raise ApiError(400, "invalid_value", message, param="top_logprobs")
        return None
    if "audio" in (body.modalities or ()):
        message = 'logprobs: not supported with audio output. fix: set modalities to ["text"] or logprobs to false'
        raise ApiError(400, "unsupported_parameter", message, param="logprobs")
    return body.top_logprobs or 0


def clip_max_tokens(served: ServedModel, max_tokens: int) -> int:
    """Maximum output tokens, at most the context length of the model. Its route clips them further by the prompt."""
    max_context_tokens = served.optional_method("max_context_tokens")
    limit = None if max_context_tokens is None else max_context_tokens()
    return max_tokens if limit is None else min(max_tokens, limit)


def to_sampling(
    served: ServedModel, body: SamplingParams, max_tokens: int, logprobs: int | None, grammar: Grammar | None
) -> Sampling:
    """Convert the sampling parameters of a body."""
    bias = body.logit_bias or {}
    for token in bias:
        if not token.isdecimal() or len(token) >= 10:
            message = f"logit_bias: {token[:32]!r} is not a token id. fix: use decimal token ids as keys"
            raise ApiError(400, "invalid_value", message, param="logit_bias")
    return served.sampling(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=tuple((int(token), value) for token, value in bias.items()),
        grammar=grammar,
        stop_strings=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=logprobs,
        seed=body.seed,
    )


async def to_chat_request(
    body: ChatBody, tools: Sequence[Tool], served: ServedModel, media: MediaInputs
) -> ChatRequest:
    """Build the request for the model's route. Fetches and decodes media. Raises ApiError."""
    max_tokens = clip_max_tokens(served, body.max_completion_tokens or body.max_tokens or DEFAULT_MAX_TOKENS)
    sampling = to_sampling(served, body, max_tokens, _parse_logprobs(body), to_grammar(body, tools))
    count = sum(1 for part in _content_parts(body) if part.type != "text")
    if count > MAX_MEDIA_PARTS:
        message = f"messages: {count} media parts, the limit is {MAX_MEDIA_PARTS}. fix: send fewer of them"
        raise ApiError(400, "invalid_value", message, param="messages")
    voice = body.audio.voice if body.audio else ""
    return ChatRequest(
        messages=tuple([await to_message(message, media) for message in body.messages]),
        audio_output="audio" in (body.modalities or ()),
        voice=resolve_voice(voice if isinstance(voice, str) else voice.id, served),
        sampling=sampling,
        tools=() if body.tool_choice == "none" else tuple(tools),
    )


async def to_message(message: MessageParam, media: MediaInputs) -> Message:
    """Convert one message; the role `developer` becomes `system`."""
    role = "system" if message.role == "developer" else message.role
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls)
    return Message(role, await to_parts(message, media), calls, message.tool_call_id)


async def to_parts(message: MessageParam, media: MediaInputs) -> tuple[ContentPart, ...]:
    """Convert the content of a message, with its media decoded."""
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
            fix = _UNSUPPORTED_PART_FIXES.get(part.type, _DEFAULT_PART_FIX)
            message = f"messages: unsupported or incomplete content part of type {part.type[:64]!r}. fix: {fix}"
            raise ApiError(400, "unsupported_media", message, param="messages")


async def _decode_file_part(url: str, media: MediaInputs) -> ContentPart:
    data, kind = await media.read_url(url, "file"), _TYPES_BY_MEDIA_TYPE[_media_type_prefix(url)]
    if kind is ImageInput:
        return await media.decode_image(data, "file")
    if kind is AudioInput:
        return await media.decode_audio(data, "file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        message = "file: the text is not valid UTF-8. fix: encode it as UTF-8"
        raise ApiError(400, "unsupported_media", message, param="messages") from None


def audio_encoder_for(body: ChatBody) -> AudioStreamEncoder | None:
    """Encoder for the requested audio format, or None if `modalities` has no audio. Raises ApiError."""
    if "audio" not in (body.modalities or ()):
        return None
    name = body.audio.format if body.audio else "wav"
    try:
        return AudioStreamEncoder("pcm" if name == "pcm16" else name, OUTPUT_SAMPLE_RATE_HZ)
    except MissingExtra as error:
        raise missing_extra_error(str(error), "audio.format", "use wav or pcm16") from None


def to_grammar(body: ChatBody, tools: Sequence[Tool]) -> Grammar | None:
    """Grammar for constrained decoding: a forced tool call, or `response_format`. None: unconstrained."""
    forced = forced_tools(body, tools)
    if not forced:
        return to_response_grammar(body)
    by_name = {tool.name: tool for tool in tools}
    check_schema({"anyOf": [by_name[name].parameters for name in forced]}, "tools")
    calls = [_tool_call_schema(name, by_name[name].parameters) for name in forced]
    return Grammar.json_schema(calls[0] if len(calls) == 1 else {"anyOf": calls})


def to_response_grammar(body: ChatBody) -> Grammar | None:
    """Grammar of `response_format`; None: unconstrained."""
    response_format = body.response_format
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return Grammar.json_schema({"type": "object"})
    if response_format.json_schema is None:
        message = 'response_format.json_schema: missing. fix: send {"name": ..., "schema": {...}} or use json_object'
        raise ApiError(400, "invalid_value", message, param="response_format.json_schema")
    schema = response_format.json_schema.json_schema
    check_schema(schema, "response_format.json_schema.schema")
    return Grammar.json_schema(schema)


def forced_tools(body: ChatBody, tools: Sequence[Tool]) -> list[str]:
    """Names of the tools that `tool_choice` forces the model to choose from; empty if it is free."""
    offered = [tool.name for tool in tools]
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in offered:
            message = f"tool_choice: no tool is named {name!r}. fix: add it to tools or name one of {offered[:16]}"
            raise ApiError(400, "invalid_value", message, param="tool_choice")
        return [name]
    if body.tool_choice == "required" and not offered:
        message = "tools: empty, but tool_choice is required. fix: add a tool or set tool_choice to auto"
        raise ApiError(400, "invalid_value", message, param="tools")
    return offered if body.tool_choice == "required" else []


def _tool_call_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": parameters or {"type": "object"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
