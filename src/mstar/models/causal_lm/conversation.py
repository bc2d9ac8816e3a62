"""A conversation in the form that chat templates of transformers read: a list of dicts, and tools as JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mstar.errors import Unsupported
from mstar.requests import Message, Tool, ToolCall


def to_template_message(message: Message) -> dict[str, Any]:
    """Convert one message. Raises Unsupported for parts other than text."""
    if not all(isinstance(part, str) for part in message.parts):
        raise Unsupported("this model reads text only, and a message has another kind of part\n  fix: send text parts")
    converted: dict[str, Any] = {"role": message.role, "content": "".join(map(str, message.parts))}
    if message.tool_calls:
        converted["tool_calls"] = [_to_template_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        converted["tool_call_id"] = message.tool_call_id
    return converted


def _to_template_call(call: ToolCall) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so they get an object if the text is one."""
    try:
        arguments: Any = json.loads(call.arguments)
    except (json.JSONDecodeError, RecursionError):  # not JSON, or nested too deeply
        arguments = call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def to_template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Convert the tools of a request; None if it has none."""
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools
    ]
    return [{"type": "function", "function": function} for function in functions] or None
