"""Response objects of the Responses API, and the typed events of a streamed response.

`ResponseBuilder` turns the deltas of a chat completion into output items. A streamed response sends its events; any
other one reads them to the end and returns the object. Order of the events:

1. `response.created`, `response.in_progress`.
2. The tools of each MCP server: `response.output_item.added`, `response.mcp_list_tools.in_progress` and `.completed`,
   `response.output_item.done`.
3. A message: `response.output_item.added`, `response.content_part.added`, `response.output_text.delta` for each piece
   of text, `response.output_text.done`, `response.content_part.done`, `response.output_item.done`.
4. Each call of such a tool: `response.output_item.added`, `response.mcp_call.in_progress`,
   `response.mcp_call_arguments.delta` and `.done`, `response.mcp_call.completed` or `.failed`,
   `response.output_item.done`. Then messages and calls can follow again.
5. Each function call: `response.output_item.added`, `response.function_call_arguments.delta` and `.done`,
   `response.output_item.done`.
6. `response.completed`, `response.incomplete` or `response.failed`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from mstar.requests import ToolCall
from mstar.server.errors import ApiError
from mstar.server.openai.completion import CompletionReader, Delta
from mstar.server.responses.items import Item, function_call_item, mcp_call_item, mcp_error, new_id
from mstar.server.tools.server_tools import ServerCall, Toolset

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`incomplete_details.reason` by finish reason. Responses with another finish reason are completed."""

Event = dict[str, Any]


class ResponseBuilder:
    """Builds one response object from a completion with one choice."""

    def __init__(self, fields: Mapping[str, Any], status: str, id_mark: str = "") -> None:
        """`id_mark` is a part of the id of the response."""
        self.content: dict[str, Any] = {
            "id": new_id("resp", id_mark),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **fields,
        }
        """The response object, which grows while the response is generated."""
        self.on_finished: Callable[[], object] | None = None
        """Called when the response is complete, before the last event."""
        self._event_count = 0
        self._message: Item | None = None
        """The open message."""
        self._message_index = 0
        self._mcp_call: Item | None = None
        """The call of a tool of an MCP server that is in progress."""

    @property
    def response_id(self) -> str:
        """Id of the response."""
        return self.content["id"]

    @property
    def is_running(self) -> bool:
        """Whether the response has not ended."""
        return self.content["status"] in ("queued", "in_progress")

    @property
    def output(self) -> list[Item]:
        """Output items so far."""
        return self.content["output"]

    async def events(self, reader: CompletionReader, toolsets: Sequence[Toolset] = ()) -> AsyncGenerator[Event]:
        """Yield the events of the response. Raises ApiError if the model fails."""
        on_finished, self.on_finished = self.on_finished, None  # it refers to the builder: no reference cycle
        self.content["status"] = "in_progress"
        yield self._event("response.created", response=self.content)
        yield self._event("response.in_progress", response=self.content)
        for toolset in toolsets:
            for event in self._add_toolset(toolset):
                yield event
        async for delta in reader.read():
            for event in self._add_delta(delta):
                yield event
        (choice,) = reader.choices
        calls = choice.calls() if choice.finish_reason == "tool_calls" else ()
        reason = _INCOMPLETE_REASONS.get(choice.finish_reason)
        status = "incomplete" if reason else "completed"
        for event in self._close(status, calls):
            yield event
        self.content |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "completed_at": None if reason else int(time.time()),
            "usage": _to_usage(reader.usage()),
        }
        if on_finished is not None:
            on_finished()
        yield self._event(f"response.{status}", response=self.content)

    def fail(self, error: ApiError) -> Event:
        """End the response with an error, and return the event that reports it."""
        self.content |= {"status": "failed", "error": {"code": error.code, "message": error.message}}
        return self._event("response.failed", response=self.content)

    def cancel(self) -> None:
        """End the response because its client cancelled it."""
        self.content["status"] = "cancelled"

    # ---------------------------------------------------------------- output items
    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._event_count, **fields}
        self._event_count += 1
        return event

    def _add_delta(self, delta: Delta) -> Iterator[Event]:
        if delta.server_call is not None:
            yield from self._add_server_call(delta.server_call)
        elif delta.content or delta.logprobs:
            yield from self._add_text(delta.content.get("content", ""), delta.logprobs)

    def _add_text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Append text to the message, which its first text opens."""
        if self._message is None:
            yield from self._open_message()
        assert self._message is not None, "opened above"
        part = self._message["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        yield self._event("response.output_text.delta", **self._position(), delta=text, logprobs=logprobs)

    def _open_message(self) -> Iterator[Event]:
        message: Item = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._message, self._message_index = message, len(self.output)
        self.output.append(message)
        yield self._event("response.output_item.added", output_index=self._message_index, item=message)
        message["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        yield self._event("response.content_part.added", **self._position(), part=message["content"][0])

    def _position(self) -> dict[str, Any]:
        """Position of the text in the output."""
        item_id = self.output[self._message_index]["id"]
        return {"item_id": item_id, "output_index": self._message_index, "content_index": 0}

    def _close_message(self, status: str) -> Iterator[Event]:
        if self._message is None:
            yield from self._open_message()
        assert self._message is not None, "opened above"
        part = self._message["content"][0]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._position(), **done)
        yield self._event("response.content_part.done", **self._position(), part=part)
        self._message["status"] = status
        yield self._event("response.output_item.done", output_index=self._message_index, item=self._message)
        self._message = None

    def _close(self, status: str, calls: Sequence[ToolCall]) -> Iterator[Event]:
        """Close the message, and add the calls of the client's functions."""
        if self._message is not None or not calls:  # without any output, the message is empty
            yield from self._close_message(status)
        for call in calls:
            yield from self._add_call(call.id, call.name, call.arguments)

    def _add_toolset(self, toolset: Toolset) -> Iterator[Event]:
        index, item_id = len(self.output), new_id("mcpl")
        position = {"item_id": item_id, "output_index": index}
        started = {"id": item_id, "type": "mcp_list_tools", "server_label": toolset.server.label}
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters, "annotations": None}
            for tool in toolset.tools
        ]
        yield self._event("response.output_item.added", output_index=index, item=started | {"tools": []})
        yield self._event("response.mcp_list_tools.in_progress", **position)
        self.output.append(started | {"tools": tools})
        yield self._event("response.mcp_list_tools.completed", **position)
        yield self._event("response.output_item.done", output_index=index, item=self.output[index])

    def _add_server_call(self, server_call: ServerCall) -> Iterator[Event]:
        result = server_call.result
        if result is None:
            if self._message is not None:
                yield from self._close_message("completed")
            yield from self._begin_server_call(server_call)
            return
        assert self._mcp_call is not None, "begun before"
        item, index = self._mcp_call, len(self.output) - 1
        if result.is_error:
            item |= {"error": mcp_error(result.text), "status": "failed"}
        else:
            item |= {"output": result.text, "status": "completed"}
        position = {"item_id": item["id"], "output_index": index}
        yield self._event(f"response.mcp_call.{item['status']}", **position)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _begin_server_call(self, server_call: ServerCall) -> Iterator[Event]:
        call, index = server_call.call, len(self.output)
        item = self._mcp_call = mcp_call_item(new_id("mcp"), server_call.server_label, call.name, call.arguments)
        position = {"item_id": item["id"], "output_index": index}
        self.output.append(item)
        yield self._event("response.output_item.added", output_index=index, item=item | {"arguments": ""})
        yield self._event("response.mcp_call.in_progress", **position)
        yield self._event("response.mcp_call_arguments.delta", **position, delta=call.arguments)
        yield self._event("response.mcp_call_arguments.done", **position, arguments=call.arguments)

    def _add_call(self, call_id: str, name: str, arguments: str) -> Iterator[Event]:
        index, item_id = len(self.output), new_id("fc")
        position = {"item_id": item_id, "output_index": index}
        started = function_call_item(item_id, call_id, name, "", "in_progress")
        finished = function_call_item(item_id, call_id, name, arguments)
        yield self._event("response.output_item.added", output_index=index, item=started)
        yield self._event("response.function_call_arguments.delta", **position, delta=arguments)
        yield self._event("response.function_call_arguments.done", **position, name=name, arguments=arguments)
        self.output.append(finished)
        yield self._event("response.output_item.done", output_index=index, item=finished)


def _to_usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Token usage of a chat completion in the form of the Responses API; None if the model does not report it."""
    if usage is None:
        return None
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0} | usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0} | usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
