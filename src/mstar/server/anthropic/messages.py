"""Messages API (Anthropic `/v1/messages`): create a message.

The body becomes a chat body, so validation, media, limits and streams are those of `/v1/chat/completions`. What the
server does not support is an error (`schema`).
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from typing import Literal

from starlette.responses import Response

from mstar.server.anthropic.conversation import to_chat_messages
from mstar.server.anthropic.errors import to_error_content
from mstar.server.anthropic.events import MessageBuilder
from mstar.server.anthropic.schema import ClientTool, McpToolset, MessagesBody
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response, sse_event
from mstar.server.openai.chat import prepare_chat, reject_long_text
from mstar.server.openai.completion import CompletionReader
from mstar.server.openai.schema import (
    MAX_MESSAGES,
    ChatBody,
    FunctionTool,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    ToolParam,
)
from mstar.server.tools.server_tools import ToolsetRequest

_FIELDS = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
}
"""Fields of this API by the fields of the chat body that errors name."""

_TOOL_CHOICES: Mapping[str, Literal["none", "auto", "required"]] = {"auto": "auto", "any": "required", "none": "none"}
"""`tool_choice` of the chat body by type, of types without a name."""


async def create_message(exchange: HttpExchange) -> Response:
    """POST /v1/messages."""
    with _own_field_names():
        await reject_long_text(exchange)
        body = await exchange.read_json(MessagesBody)
        prepared = await prepare_chat(exchange, to_chat_body(body), requested_toolsets(body))
        reader = prepared.start(functools.partial(exchange.start_requests, prepared.served))
        builder = MessageBuilder(f"msg_{exchange.context.id}", prepared.served.name)
        if body.stream:
            await reader.wait_first()
            return exchange.event_stream(_sse_events(builder, reader), _error_event)
        async for _ in builder.events(reader):
            pass
        return json_response(builder.message)


async def _sse_events(builder: MessageBuilder, reader: CompletionReader) -> AsyncGenerator[bytes]:
    async for event in builder.events(reader):
        yield sse_event(event, event["type"])


def _error_event(error: ApiError) -> bytes:
    return sse_event(to_error_content(error), "error")


# ---------------------------------------------------------------- conversion to chat
def to_chat_body(body: MessagesBody) -> ChatBody:
    """The chat body with the same meaning, without the tools of MCP servers. Raises ApiError."""
    messages = to_chat_messages(body.system, body.messages)
    if len(messages) > MAX_MESSAGES:
        message = f"messages: {len(messages)} messages and tool results, the limit is {MAX_MESSAGES}. fix: send fewer"
        raise ApiError(400, "invalid_value", message, param="messages")
    choice = body.tool_choice
    output_format = body.output_config.format if body.output_config else None
    response_format = None
    if output_format is not None:
        response_format = ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=output_format.json_schema))
    return ChatBody(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        tools=[_to_tool(tool) for tool in body.tools or () if isinstance(tool, ClientTool)],
        tool_choice=_to_tool_choice(body),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=response_format,
    )


def _to_tool(tool: ClientTool) -> ToolParam:
    function = FunctionTool(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return ToolParam(type="function", function=function)


def _to_tool_choice(body: MessagesBody) -> NamedTool | Literal["none", "auto", "required"] | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        message = "tool_choice.name: needed for the type tool, and for no other. fix: name a tool, or omit the name"
        raise ApiError(400, "invalid_value", message, param="tool_choice.name")
    if choice.name is not None:
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return _TOOL_CHOICES[choice.type]


def requested_toolsets(body: MessagesBody) -> list[ToolsetRequest]:
    """The MCP servers that a body names."""
    return [
        _to_toolset(tool, f"tools[{index}]")
        for index, tool in enumerate(body.tools or ())
        if isinstance(tool, McpToolset)
    ]


def _to_toolset(toolset: McpToolset, param: str) -> ToolsetRequest:
    configs = toolset.configs or {}
    enabled = frozenset(name for name, config in configs.items() if config.enabled)
    only = None if toolset.default_config.enabled else enabled
    return ToolsetRequest(toolset.mcp_server_name, param, only, frozenset(configs) - enabled)


@contextmanager
def _own_field_names() -> Generator[None]:
    """Errors of the chat path name the fields of this API."""
    try:
        yield
    except ApiError as error:
        chat_name, name = error.param or "", _FIELDS.get(error.param or "")
        if name is None:
            raise
        message = f"{name}: {error.message.removeprefix(f'{chat_name}: ')}"
        raise ApiError(error.status, error.code, message, param=name, retry_after=error.retry_after) from None
