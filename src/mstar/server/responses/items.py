"""Items of the Responses API: input items in the form in which they are stored, and their conversion to chat messages.

A conversation is a list of items: messages, function calls and outputs of functions, calls of tools of MCP servers with
their results. The same list is the input of the
model, the result of `GET /v1/responses/{id}/input_items`, and the context of a following response.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from mstar.server.errors import ApiError
from mstar.server.openai.schema import MAX_TOOL_CALLS, ContentPartParam, Function, MessageParam, ToolCallParam
from mstar.server.responses.schema import InputItem, ItemContent, ItemPart
from mstar.server.tools.tool_rounds import tool_message

Item = dict[str, Any]

_ITEM_FIXES = {"item_reference": "send the item itself, or set previous_response_id"}
_DEFAULT_ITEM_FIX = "send items of type message, function_call, function_call_output, mcp_call and mcp_list_tools"
_ITEM_FIELDS = {
    "message": "role and content",
    "function_call": "call_id, name and arguments",
    "function_call_output": "call_id and output",
    "mcp_call": "name, arguments, server_label, and output or error",
    "mcp_list_tools": "server_label and tools",
}
"""Fields that an item needs, by type."""
_PART_FIX = (
    "send an input_text part with text, an input_image part with image_url, an input_file part with file_data, "
    "or an input_audio part with input_audio"
)


def new_id(prefix: str, mark: str = "") -> str:
    """A new id of an item or a response, with a mark in it."""
    return f"{prefix}_{mark}{secrets.token_hex(16)}"


def to_items(content: str | list[InputItem]) -> list[Item]:
    """The items of an `input`, each with an id. Raises ApiError for items that are not supported or not complete."""
    if isinstance(content, str):
        return [_message("user", content, "input", None)]
    return [_to_item(item, f"input[{index}]") for index, item in enumerate(content)]


def _to_item(item: InputItem, path: str) -> Item:
    match item:
        case InputItem(type="message", role=str(role), content=str() | list() as content):
            return _message(role, content, path, item.id)
        case InputItem(type="function_call", call_id=str(call_id), name=str(name), arguments=str(arguments)):
            return function_call_item(item.id or new_id("fc"), call_id, name, arguments)
        case InputItem(type="function_call_output", call_id=str(call_id), output=str() | list() as output):
            return {
                "id": item.id or new_id("fco"),
                "type": "function_call_output",
                "call_id": call_id,
                "output": output if isinstance(output, str) else _to_parts(output, path, "input_text"),
                "status": "completed",
            }
        case InputItem(type="mcp_call", name=str(name), arguments=str(arguments), server_label=str(label)) if (
            isinstance(item.output, str) or item.error is not None
        ):
            call = mcp_call_item(item.id or new_id("mcp"), label, name, arguments)
            output = item.output if isinstance(item.output, str) else None
            status = "completed" if item.error is None else "failed"
            return call | {"output": output, "error": item.error, "status": status}
        case InputItem(type="mcp_list_tools", server_label=str(label), tools=list() as tools):
            return {"id": item.id or new_id("mcpl"), "type": item.type, "server_label": label, "tools": tools}
        case InputItem(type=kind) if kind in _ITEM_FIELDS:
            message = f"{path}: incomplete item of type {kind}. fix: send {_ITEM_FIELDS[kind]}"
            raise ApiError(400, "invalid_value", message, param=path)
        case _:
            fix = _ITEM_FIXES.get(item.type, _DEFAULT_ITEM_FIX)
            message = f"{path}: items of type {item.type[:64]!r} are not supported. fix: {fix}"
            raise ApiError(400, "unsupported_parameter", message, param=path)


def _message(role: str, content: ItemContent, path: str, item_id: str | None) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [_text_part(kind, content)] if isinstance(content, str) else _to_parts(content, path, kind)
    return {"id": item_id or new_id("msg"), "type": "message", "role": role, "status": "completed", "content": parts}


def function_call_item(item_id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
    """A `function_call` item, of the input or the output."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def mcp_call_item(item_id: str, label: str, name: str, arguments: str) -> Item:
    """An `mcp_call` item without a result."""
    return {
        "id": item_id,
        "type": "mcp_call",
        "server_label": label,
        "name": name,
        "arguments": arguments,
        "output": None,
        "error": None,
        "status": "in_progress",
    }


def _text_part(kind: str, text: str) -> Item:
    return {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})


def _to_parts(parts: Iterable[ItemPart], path: str, text_kind: str) -> list[Item]:
    return [_to_part(part, f"{path}.content[{index}]", text_kind) for index, part in enumerate(parts)]


def _to_part(part: ItemPart, path: str, text_kind: str) -> Item:
    match part:
        case ItemPart(type="input_text" | "output_text" | "text", text=str(text)):
            return _text_part(text_kind, text)
        case ItemPart(type="input_image", image_url=str(url)):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case ItemPart(type="input_file", file_data=str(data)):
            return {"type": "input_file", "file_data": data} | ({"filename": part.filename} if part.filename else {})
        case ItemPart(type="input_audio", input_audio={"data": str()} as audio):
            return {"type": "input_audio", "input_audio": audio}
        case _:
            message = f"{path}: unsupported or incomplete part of type {part.type[:64]!r}. fix: {_PART_FIX}"
            raise ApiError(400, "unsupported_media", message, param=path)


# ---------------------------------------------------------------- chat messages
def to_messages(instructions: str | None, items: Iterable[Mapping[str, Any]]) -> list[MessageParam]:
    """Chat messages of a conversation. Function calls belong to the assistant message before them."""
    messages = [MessageParam(role="system", content=instructions)] if instructions else list[MessageParam]()
    for item in items:
        if item["type"] in ("function_call", "mcp_call"):
            _add_call(messages, item.get("call_id", item["id"]), item)
            if item["type"] == "mcp_call":
                messages.append(_mcp_result(item))
        elif item["type"] == "mcp_list_tools":
            continue  # the request lists the tools of the response that it creates
        elif item["type"] == "function_call_output":
            messages.append(
                MessageParam(role="tool", content=_chat_content(item["output"]), tool_call_id=item["call_id"])
            )
        else:
            messages.append(MessageParam(role=item["role"], content=_chat_content(item["content"])))
    return messages


def _add_call(messages: list[MessageParam], call_id: str, item: Mapping[str, Any]) -> None:
    call = ToolCallParam(id=call_id, function=Function(name=item["name"], arguments=item["arguments"]))
    if messages and messages[-1].role == "assistant" and len(messages[-1].tool_calls) < MAX_TOOL_CALLS:
        last = messages.pop()
        messages.append(last.model_copy(update={"tool_calls": [*last.tool_calls, call]}))
    else:
        messages.append(MessageParam(role="assistant", tool_calls=[call]))


def _mcp_result(item: Mapping[str, Any]) -> MessageParam:
    error = item["error"]
    text = item["output"] if error is None else _error_text(error)
    return MessageParam(
        role="tool",
        content=tool_message(text, is_error=error is not None),
        tool_call_id=item.get("call_id", item["id"]),
    )


def mcp_error(text: str) -> dict[str, Any]:
    """The field `error` of an `mcp_call` item."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def _error_text(error: Any) -> str:
    """The text of an error that `mcp_error` made, or that a client sent."""
    match error:
        case {"content": [{"text": str(text)}]} | {"message": str(text)}:
            return text
        case _:
            return error if isinstance(error, str) else "the call failed"


def _chat_content(content: str | list[Item]) -> str | list[ContentPartParam]:
    return content if isinstance(content, str) else [_chat_part(part) for part in content]


def _chat_part(part: Item) -> ContentPartParam:
    match part["type"]:
        case "input_image":
            return ContentPartParam(type="image_url", image_url={"url": part["image_url"]})
        case "input_file":
            return ContentPartParam(type="file", file={"file_data": part["file_data"]})
        case "input_audio":
            return ContentPartParam(type="input_audio", input_audio=part["input_audio"])
        case _:
            return ContentPartParam(type="text", text=part["text"])
