"""Responses API (OpenAI `/v1/responses`): create, retrieve, cancel and delete responses, list their input items.

The body becomes a chat body, so validation, media, limits and streams are those of `/v1/chat/completions`. Responses
are stored unless `store` is false (`store`). Items of built-in tools other than MCP, conversations and
prompt templates are not supported.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from mstar.requests import Sampling
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response, sse_event
from mstar.server.openai.chat import (
    ChatOutline,
    MessageOutline,
    PreparedChat,
    apply_service_tier,
    prepare_chat,
    reject_long_text,
    requested_toolsets,
)
from mstar.server.openai.schema import (
    MAX_MESSAGES,
    ChatBody,
    FunctionTool,
    JsonSchema,
    McpTool,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    ToolParam,
)
from mstar.server.responses.events import Event, ResponseBuilder
from mstar.server.responses.items import Item, to_items, to_messages
from mstar.server.responses.remote_conversation import read_conversation
from mstar.server.responses.schema import ResponsesBody, ResponseToolChoice, TextFormat
from mstar.server.responses.store import MAX_RUNNING, ResponseStore, StoredResponse, not_stored
from mstar.server.tools.server_tools import Toolset
from mstar.server.unexpected_errors import report_exception

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that requests logprobs."""
DEFAULT_PAGE_SIZE = 20
"""Input items of a page if the request does not set `limit`."""
MAX_PAGE_SIZE = 100
RETRY_AFTER_S = 5.0
"""Retry-After, in seconds, if a tenant has too many background responses."""
_PARAMS = {
    "messages": "input",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format",
    "logprobs": "include",
}
"""Fields of this API by the fields of the chat body that errors name."""


class _ResponsesOutline(ChatOutline):
    messages: list[MessageOutline] | str = msgspec.field(name="input", default_factory=list[MessageOutline])


# ---------------------------------------------------------------- endpoints
async def create_response(exchange: HttpExchange) -> Response:
    """POST /v1/responses."""
    with _own_field_names():
        await reject_long_text(exchange, _ResponsesOutline)
        body = await exchange.read_json(ResponsesBody)
        _reject_unsupported(body)
        tier = apply_service_tier(exchange, body.service_tier)
        previous_id = body.previous_response_id
        previous = [] if previous_id is None else await _previous_items(exchange, previous_id)
        items = [*previous, *to_items(body.input)]
        chat_body = to_chat_body(body, items)
        prepared = await prepare_chat(exchange, chat_body, requested_toolsets(chat_body))
        _check_tool_choice(body, prepared.toolsets)
        builder = ResponseBuilder(
            request_fields(body, prepared.requests[0].sampling) | tier,
            "queued" if body.background else "in_progress",
            exchange.state.id_mark,
        )
        stored = StoredResponse(builder, items)
        # Not with `exchange`: a stored response must not keep the body of its request. A background response is already
        # stored, and stored again when its task ends.
        if body.store is not False and not body.background:
            builder.on_finished = functools.partial(response_store(exchange).put, exchange.context.tenant_name, stored)
        if body.background:
            return json_response(_start_background(exchange, stored, prepared))
        reader = prepared.start(functools.partial(exchange.start_requests, prepared.served))
        events = builder.events(reader, prepared.toolsets)
        if body.stream:
            await reader.wait_first()
            return exchange.event_stream(
                _sse_events(events),
                lambda error: _sse_event(builder.fail(_with_own_field_names(error))),
            )
        async for _ in events:
            pass
        return json_response(builder.content)


async def retrieve(exchange: HttpExchange) -> Response:
    """GET /v1/responses/{response}."""
    if exchange.request.query_params.get("stream", "false") != "false":
        message = "stream: a stored response cannot be streamed. fix: omit stream"
        raise ApiError(400, "unsupported_parameter", message, param="stream")
    return json_response(_find(exchange).builder.content)


async def delete(exchange: HttpExchange) -> Response:
    """DELETE /v1/responses/{response}; cancels a background response that is running."""
    response_id = exchange.request.path_params["response"]
    response_store(exchange).remove(exchange.context.tenant_name, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel(exchange: HttpExchange) -> Response:
    """POST /v1/responses/{response}/cancel: cancel a background response. Does nothing if it has ended."""
    stored = _find(exchange)
    if not stored.builder.content["background"]:
        message = "the response is not a background response. fix: close its connection to cancel it"
        raise ApiError(400, "not_background", message)
    if stored.task is not None:
        stored.builder.cancel()
        stored.task.cancel()
    return json_response(stored.builder.content)


async def list_input_items(exchange: HttpExchange) -> Response:
    """GET /v1/responses/{response}/input_items: the input, including the items of previous responses."""
    items, query = _find(exchange).input_items, exchange.request.query_params
    order, limit = query.get("order", "desc"), query.get("limit", str(DEFAULT_PAGE_SIZE))
    if order not in ("asc", "desc"):
        raise ApiError(400, "invalid_value", f"order: {order[:64]!r} is unknown. fix: use asc or desc", param="order")
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= MAX_PAGE_SIZE:
        message = f"limit: {limit[:64]!r} is out of range. fix: use a number from 1 to {MAX_PAGE_SIZE}"
        raise ApiError(400, "invalid_value", message, param="limit")
    ordered = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        position = next((index for index, item in enumerate(ordered) if item["id"] == after), None)
        if position is None:
            message = f"after: no input item has the id {after[:64]!r}. fix: use the last_id of a page"
            raise ApiError(400, "invalid_value", message, param="after")
        ordered = ordered[position + 1 :]
    page = ordered[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": page, "has_more": len(page) < len(ordered), **ends})


# ---------------------------------------------------------------- conversion to chat
def to_chat_body(body: ResponsesBody, items: list[Item]) -> ChatBody:
    """The chat body with the same meaning. Raises ApiError."""
    messages = to_messages(body.instructions, items)
    if len(messages) > MAX_MESSAGES:
        message = (
            f"input: {len(messages)} messages with the previous ones, the limit is {MAX_MESSAGES}. fix: send fewer"
        )
        raise ApiError(400, "invalid_value", message, param="input")
    has_logprobs = LOGPROBS in (body.include or ()) or body.top_logprobs is not None
    return ChatBody(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        logprobs=has_logprobs,
        top_logprobs=body.top_logprobs,
        response_format=_to_response_format((body.text and body.text.format) or TextFormat()),
        tools=_to_tools(body),
        tool_choice=NamedTool(type="function", function=NamedFunction(name=body.tool_choice.name))
        if isinstance(body.tool_choice, ResponseToolChoice)
        else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
    )


def _to_tools(body: ResponsesBody) -> list[ToolParam | McpTool]:
    tools = list[ToolParam | McpTool]()
    for index, tool in enumerate(body.tools or ()):
        if isinstance(tool, McpTool):
            tools.append(tool)
            continue
        if tool.type != "function":
            fix = "send functions, or tools of type mcp"
            message = f"tools[{index}]: tools of type {tool.type[:64]!r} are not supported. fix: {fix}"
            raise ApiError(400, "unsupported_parameter", message, param=f"tools[{index}]")
        if tool.name is None:
            raise ApiError(
                400, "invalid_value", f"tools[{index}].name: missing. fix: name it", param=f"tools[{index}].name"
            )
        function = FunctionTool(name=tool.name, description=tool.description or "", parameters=tool.parameters or {})
        tools.append(ToolParam(type="function", function=function))
    return tools


def _to_response_format(text_format: TextFormat) -> ResponseFormat:
    schema = text_format.json_schema
    return ResponseFormat(
        type=text_format.type,
        json_schema=None if schema is None else JsonSchema(name=text_format.name or "", schema=schema),
    )


def _reject_unsupported(body: ResponsesBody) -> None:
    unsupported = {
        "conversation": (body.conversation is not None, "set previous_response_id"),
        "max_tool_calls": (body.max_tool_calls is not None, "omit it; the operator sets max_tool_rounds"),
        "prompt": (body.prompt is not None, "send the text in input and instructions"),
        "truncation": (body.truncation not in (None, "disabled"), "send a shorter input"),
        "stream": (bool(body.background and body.stream), "poll a background response instead"),
        "store": (bool(body.background and body.store is False), "store a background response, or omit background"),
    }
    for name, (is_set, fix) in unsupported.items():
        if is_set:
            message = f"{name}: this value is not supported. fix: {fix}"
            raise ApiError(400, "unsupported_parameter", message, param=name)


def _check_tool_choice(body: ResponsesBody, toolsets: Sequence[Toolset]) -> None:
    """Reject a `tool_choice` that names a tool of an MCP server that does not have it."""
    choice = body.tool_choice
    if not isinstance(choice, ResponseToolChoice) or choice.type != "mcp":
        return
    names = {tool.name for toolset in toolsets if toolset.server.label == choice.server_label for tool in toolset.tools}
    if choice.name not in names:
        message = (
            f"tool_choice: the MCP server {(choice.server_label or '')[:64]!r} has no tool {choice.name[:64]!r} here. "
            "fix: name a server and a tool of tools"
        )
        raise ApiError(400, "invalid_value", message, param="tool_choice")


def request_fields(body: ResponsesBody, sampling: Sampling) -> dict[str, Any]:
    """Fields of the response object that repeat parameters of the request."""
    text_format = (body.text and body.text.format) or TextFormat()
    tool_choice = body.tool_choice or "auto"
    return {
        "model": body.model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "tool_choice": tool_choice if isinstance(tool_choice, str) else tool_choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": text_format.model_dump(by_alias=True, exclude_none=True)},
        "reasoning": {"effort": None, "summary": None},
        "truncation": "disabled",
        "metadata": body.metadata or {},
        "previous_response_id": body.previous_response_id,
        "background": bool(body.background),
        "store": body.store is not False,
    }


@contextmanager
def _own_field_names() -> Generator[None]:
    """Errors of the chat path name the fields of this API."""
    try:
        yield
    except ApiError as error:
        raise _with_own_field_names(error) from None


def _with_own_field_names(error: ApiError) -> ApiError:
    chat_name, name = error.param or "", _PARAMS.get(error.param or "")
    if name is None:
        return error
    message = error.message.removeprefix(f"{chat_name}: ")
    if message != error.message:
        message = f"{name}: {message}"
    return ApiError(error.status, error.code, message, param=name, retry_after=error.retry_after)


# ---------------------------------------------------------------- stored and background responses
def response_store(exchange: HttpExchange) -> ResponseStore:
    """The stored responses of this front end."""
    state = exchange.request.app.state
    if not hasattr(state, "response_store"):
        state.response_store = ResponseStore()
    return state.response_store


def _find(exchange: HttpExchange) -> StoredResponse:
    return response_store(exchange).find(exchange.context.tenant_name, exchange.request.path_params["response"])


async def _previous_items(exchange: HttpExchange, response_id: str) -> list[Item]:
    """Items of the conversation that a response continues. Raises ApiError."""
    siblings = exchange.state.siblings
    previous = response_store(exchange).get(exchange.context.tenant_name, response_id)
    if previous is not None:
        content, items = previous.builder.content, previous.conversation
    elif siblings is not None and (owner := siblings.owner_of(response_id)) is not None:
        content, items = await read_conversation(siblings, owner, exchange.request.scope, response_id)
    else:
        content, items = None, []
    if content is None:
        message = f"previous_response_id: {not_stored(response_id)}"
        raise ApiError(400, "previous_response_not_found", message, param="previous_response_id")
    if (status := content["status"]) not in ("completed", "incomplete"):
        message = f"previous_response_id: the response is {status}. fix: continue a completed response"
        raise ApiError(400, "invalid_value", message, param="previous_response_id")
    return items


def _start_background(exchange: HttpExchange, stored: StoredResponse, prepared: PreparedChat) -> dict[str, Any]:
    """Start a response that runs without its client. Returns the response object."""
    state, context, store = exchange.state, exchange.context, response_store(exchange)
    tenant = context.tenant_name
    if store.count_running(tenant) >= MAX_RUNNING:
        raise _background_full()
    # Stored once it has started: a rejected request leaves no entry, and drops no other response.
    reader = prepared.start(functools.partial(state.start_requests, prepared.served, context=context))
    if not store.put(tenant, stored):
        reader.close()
        raise _background_full()
    memory = context.take_memory()  # the inputs are in memory until the response ends, not until the client has its id

    async def run() -> None:  # without `exchange`, which keeps the body of the request
        builder = stored.builder
        try:
            async for _ in builder.events(reader, prepared.toolsets):
                pass
        except ApiError as error:
            builder.fail(_with_own_field_names(error))
        except Exception as error:  # noqa: BLE001 - any other exception is reported
            builder.fail(report_exception(error, state, context))

    def on_done(_: asyncio.Task[None]) -> None:  # `finally` does not run in a task that is cancelled before it starts
        reader.close()
        if memory is not None:
            memory.close()
        stored.task = None
        if store.get(tenant, stored.builder.response_id) is stored:  # else it was deleted
            store.put(tenant, stored)  # counts its output, which a failed or cancelled response has too

    stored.task = asyncio.create_task(run())
    stored.task.add_done_callback(on_done)
    return stored.builder.content


def _background_full() -> ApiError:
    message = (
        f"background: the limit of {MAX_RUNNING} running background responses or the storage of this API key is "
        f"full. fix: retry after {RETRY_AFTER_S:g} s, or cancel one"
    )
    return ApiError(429, "quota_exceeded", message, param="background", retry_after=RETRY_AFTER_S)


async def _sse_events(events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    async for event in events:
        yield _sse_event(event)


def _sse_event(event: Event) -> bytes:
    return sse_event(event, event["type"])
