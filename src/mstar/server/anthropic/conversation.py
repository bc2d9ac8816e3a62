"""Conversion of messages of the Anthropic API to chat messages.

A message of a user can hold results of tools, which are messages of their own in chat. A message of an assistant can
hold calls of the server's tools with their results: it becomes several messages, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mstar.server.anthropic.schema import (
    ContentBlock,
    EncodedImage,
    ImageBlock,
    InputMessage,
    McpToolResultBlock,
    McpToolUseBlock,
    ResultContent,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from mstar.server.errors import ApiError
from mstar.server.openai.schema import MAX_TOOL_CALLS, ContentPartParam, Function, MessageParam, ToolCallParam
from mstar.server.tools.tool_rounds import tool_message

_ROLES: Mapping[type, tuple[str, ...]] = {
    ImageBlock: ("user",),
    ToolResultBlock: ("user",),
    ToolUseBlock: ("assistant",),
    McpToolUseBlock: ("assistant",),
    McpToolResultBlock: ("assistant",),
}
"""Roles of the messages that can have a block. A text can be in any message."""


def to_chat_messages(system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]) -> list[MessageParam]:
    """Chat messages with the same content. Raises ApiError."""
    if messages[-1].role == "assistant":
        message = "messages: the last message is of the assistant, and a response cannot continue it. fix: remove it"
        raise ApiError(400, "unsupported_parameter", message, param="messages")
    converted = [MessageParam(role="system", content=_content(system))] if system else list[MessageParam]()
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            converted.append(MessageParam(role=message.role, content=message.content))
        else:
            _check_roles(message, f"messages[{index}]")
            converted += _to_messages(message, message.content)
    return converted


def _check_roles(message: InputMessage, path: str) -> None:
    calls = 0
    for index, block in enumerate(message.content):
        if message.role not in _ROLES.get(type(block), (message.role,)):
            kind = "" if isinstance(block, str) else block.type
            text = f"{path}.content[{index}]: a message of the role {message.role} cannot have a block of type {kind}"
            raise ApiError(400, "invalid_value", f"{text}. fix: send it in a message of the other role", param=path)
        calls += isinstance(block, ToolUseBlock | McpToolUseBlock)
    if calls > MAX_TOOL_CALLS:
        text = f"{path}: {calls} calls of tools, the limit is {MAX_TOOL_CALLS}. fix: send fewer"
        raise ApiError(400, "invalid_value", text, param=path)


def _to_messages(message: InputMessage, blocks: Iterable[ContentBlock]) -> Iterator[MessageParam]:
    parts, calls = list[ContentPartParam](), list[ToolCallParam]()

    def flush() -> Iterator[MessageParam]:
        if parts or calls:
            yield MessageParam(role=message.role, content=[*parts], tool_calls=[*calls])
            parts.clear()
            calls.clear()

    for block in blocks:
        match block:
            case TextBlock() | ImageBlock():
                if calls:  # a text after a call belongs to the next message
                    yield from flush()
                parts.append(_to_part(block))
            case ToolUseBlock() | McpToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(ToolCallParam(id=block.id, function=Function(name=block.name, arguments=arguments)))
            case ToolResultBlock() | McpToolResultBlock():
                yield from flush()
                yield _to_result(block)
    yield from flush()


def _to_result(block: ToolResultBlock | McpToolResultBlock) -> MessageParam:
    content = _content(block.content or "")
    if isinstance(content, str):
        content = tool_message(content, is_error=block.is_error)
    elif block.is_error:
        content = [ContentPartParam(type="text", text=tool_message("", is_error=True)), *content]
    return MessageParam(role="tool", content=content, tool_call_id=block.tool_use_id)


def _content(content: ResultContent | Sequence[TextBlock]) -> str | list[ContentPartParam]:
    return content if isinstance(content, str) else [_to_part(block) for block in content]


def _to_part(block: TextBlock | ImageBlock) -> ContentPartParam:
    if isinstance(block, TextBlock):
        return ContentPartParam(type="text", text=block.text)
    source = block.source
    url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, EncodedImage) else source.url
    return ContentPartParam(type="image_url", image_url={"url": url})
