"""Tool parsers: find the tool calls in generated text. The chat template tells which format a checkpoint writes.

| format | recognized by | families |
|---|---|---|
| `<tool_call>{"name": ..., "arguments": ...}</tool_call>` | `<tool_call>` in the template | Qwen, Hermes |
| `[TOOL_CALLS][{"name": ..., "arguments": ...}]` | `[TOOL_CALLS]` in the template | Mistral |
| `{"name": ..., "parameters": ...}` | `<|python_tag|>` in the template | Llama 3 |

Text that starts a call but does not parse stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from mstar.requests import ToolCall


@dataclass(frozen=True, slots=True)
class ToolParser:
    """The format of tool calls of one family."""

    marker: str
    """Text of the chat template by which the format is recognized."""
    start: str
    """Text that starts the first call of an answer."""

    def parse(self, text: str) -> tuple[ToolCall, ...]:
        """The tool calls in the text of an answer; empty if there are none or they are malformed."""
        before, start, rest = text.partition(self.start)
        if not start or (self.start == "{" and before.strip()):
            return ()  # a JSON object in the middle of a text is no call
        return tuple(_to_call(value) for value in _json_values(start + rest) if _is_call(value))


PARSERS = (
    ToolParser("<tool_call>", "<tool_call>"),
    ToolParser("[TOOL_CALLS]", "[TOOL_CALLS]"),
    ToolParser("<|python_tag|>", "{"),
)


def find_tool_parser(chat_template: str) -> ToolParser | None:
    """The tool parser of a chat template; None if it describes no known format."""
    return next((parser for parser in PARSERS if parser.marker in chat_template), None)


def _json_values(text: str) -> Iterator[Any]:
    """The JSON objects in a text, also those in a list."""
    decoder, position = json.JSONDecoder(), text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):  # not JSON, or nested too deeply
            return
        yield value
        position = text.find("{", end)


def _is_call(value: Any) -> bool:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return isinstance(fields.get("name"), str) and isinstance(_arguments(fields), dict | str)


def _arguments(value: dict[str, Any]) -> Any:
    return value.get("arguments", value.get("parameters", {}))


def _to_call(value: dict[str, Any]) -> ToolCall:
    arguments = _arguments(value)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall("", value["name"], text)
