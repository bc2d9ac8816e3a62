"""Message objects of the Anthropic API, and the events of a streamed response.

`MessageBuilder` turns the deltas of a chat completion into content blocks. A streamed response sends its events; any
other one reads them to the end and returns the message. Order of the events:

1. `message_start` with an empty message, `ping`.
2. Each block: `content_block_start`, `content_block_delta`, `content_block_stop`. Blocks of text; `mcp_tool_use` and
   `mcp_tool_result` for each call of a server tool; `tool_use` for each call of a tool of the client.
3. `message_delta` with the stop reason and the usage, `message_stop`.

An error ends the stream with an `error` event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from mstar.server.openai.completion import Choice, CompletionReader, Delta
from mstar.server.tools.mcp_server import parse_arguments
from mstar.server.tools.server_tools import ServerCall

Event = dict[str, Any]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""`stop_reason` by finish reason. Responses with another finish reason are ended by the model."""


class MessageBuilder:
    """Builds one message from a completion with one choice."""

    def __init__(self, message_id: str, model: str) -> None:
        self.message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _to_usage(None),
        }
        """The message, which grows while it is generated."""
        self._text: dict[str, Any] | None = None
        """The open block of text."""

    async def events(self, reader: CompletionReader) -> AsyncGenerator[Event]:
        """Yield the events of the message. Raises ApiError if the model fails."""
        yield {"type": "message_start", "message": self.message}
        yield {"type": "ping"}
        async for delta in reader.read():
            for event in self._add_delta(delta):
                yield event
        (choice,) = reader.choices
        for event in self._close(choice):
            yield event
        usage = _to_usage(reader.usage())
        end = _to_end(choice)
        self.message |= end | {"usage": usage}
        yield {"type": "message_delta", "delta": end, "usage": usage}
        yield {"type": "message_stop"}

    # ---------------------------------------------------------------- content blocks
    def _add_delta(self, delta: Delta) -> Iterator[Event]:
        if delta.server_call is not None:
            yield from self._add_server_call(delta.server_call)
        elif text := delta.content.get("content"):
            yield from self._add_text(text)

    def _add_text(self, text: str) -> Iterator[Event]:
        if self._text is None:
            block = {"type": "text", "text": "", "citations": None}
            yield from self._start(block, dict(block))
            self._text = block
        self._text["text"] += text
        yield self._delta({"type": "text_delta", "text": text})

    def _close_text(self) -> Iterator[Event]:
        if self._text is not None:
            self._text = None
            yield self._stop()

    def _close(self, choice: Choice) -> Iterator[Event]:
        """Close the text, and add the calls of the client's tools."""
        yield from self._close_text()
        for call in choice.calls() if choice.finish_reason == "tool_calls" else ():
            block = {"type": "tool_use", "id": call.id, "name": call.name}
            yield from self._add_call(block, call.arguments)

    def _add_server_call(self, server_call: ServerCall) -> Iterator[Event]:
        call, result = server_call.call, server_call.result
        if result is None:
            yield from self._close_text()
            block = {"type": "mcp_tool_use", "id": call.id, "name": call.name, "server_name": server_call.server_label}
            yield from self._add_call(block, call.arguments)
        else:
            content = [{"type": "text", "text": result.text, "citations": None}]
            end = {"type": "mcp_tool_result", "tool_use_id": call.id, "is_error": result.is_error, "content": content}
            yield from self._start(end, end)
            yield self._stop()

    def _add_call(self, block: dict[str, Any], arguments: str) -> Iterator[Event]:
        """A call of a tool. Its input starts empty in a stream, and is one delta."""
        yield from self._start(block | {"input": parse_arguments(arguments) or {}}, block | {"input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": arguments})
        yield self._stop()

    def _start(self, block: dict[str, Any], started: dict[str, Any]) -> Iterator[Event]:
        """Add a block. `started` is what a stream shows of it at first."""
        self.message["content"].append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": started}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Event:
        return {"type": "content_block_stop", "index": self._index}

    @property
    def _index(self) -> int:
        """Index of the last block."""
        return len(self.message["content"]) - 1


def _to_end(choice: Choice) -> dict[str, Any]:
    """Why the message ended."""
    reason = _STOP_REASONS.get(choice.finish_reason, "end_turn")
    if reason == "end_turn" and choice.stop_string:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_string}
    return {"stop_reason": reason, "stop_sequence": None}


def _to_usage(usage: dict[str, Any] | None) -> dict[str, int]:
    """Token usage of a chat completion in the form of the Anthropic API; 0 if it is not known."""
    return {
        "input_tokens": usage["prompt_tokens"] if usage else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage["completion_tokens"] if usage else 0,
    }
