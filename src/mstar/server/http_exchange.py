"""HTTP exchange: one request with its response, from reading the body to the last byte sent.

When the client disconnects, the handler is cancelled where it awaits, and every stream opened for the request is
closed. Authentication happens before (`app`); what the body means is up to the endpoints.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mstar.frontend.response_stream import ResponseStream
from mstar.server.access.slo import SLO_HEADER
from mstar.server.endpoint import Endpoint
from mstar.server.errors import ApiError
from mstar.server.inputs.media_inputs import MediaInputs
from mstar.server.inputs.memory_budget import Reservation
from mstar.server.request_context import CLIENT_CLOSED_REQUEST, RequestContext
from mstar.server.state import ServedModel, ServerState
from mstar.server.stream_response import FLOW_CONTROL, EventStreamResponse, ResponseBody
from mstar.server.unexpected_errors import report_exception
from mstar.server.write_timeout import CancellableFlowControl, ClientStalled

Body = TypeVar("Body", bound=BaseModel)

MAX_JSON_VALUES = 250_000
"""Maximum number of JSON values in a body. Parsing more would block the event loop for all other clients."""
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TYPE_LABELS = frozenset(("str", "int", "float", "bool", "dict", "any"))
"""Names that pydantic adds to the location of an error for the types of a union."""


class HttpExchange:
    """One HTTP request and its response, for an endpoint to serve."""

    def __init__(self, state: ServerState, endpoint: Endpoint, context: RequestContext, request: Request) -> None:
        self.state = state
        self.endpoint = endpoint
        self.context = context
        self.request = request
        self.headers: Mapping[str, str] = request.scope["request_headers"]
        """By their names in lower case."""
        self._body = b""
        self._streams: list[ResponseStream] = []

    # ---------------------------------------------------------------- request
    @property
    def media_type(self) -> str:
        """Media type of the body, application/json by default."""
        return self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()

    async def body(self) -> bytes:
        """The body, at most `max_body_bytes` long."""
        return self._body

    async def receive_body(self) -> None:
        """Read the body. Raises ApiError if it is too large or arrives too slowly."""
        limit = self.endpoint.max_body_bytes
        content_length = self.headers.get("content-length", "0")
        if not content_length.isdigit() or int(content_length) > limit:
            raise _body_too_large(limit)
        self.memory.add(int(content_length))
        body, unannounced = bytearray(), -int(content_length)
        try:
            async with asyncio.timeout(self.state.limits.body_timeout_s):
                has_more = True
                while has_more:  # not `request.stream()`: an async generator costs more than it saves here
                    message = await self.request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    has_more, chunk = message.get("more_body", False), message.get("body", b"")
                    body += chunk
                    if len(body) > limit:
                        raise _body_too_large(limit)
                    if (unannounced := unannounced + len(chunk)) > 0:  # a chunked body has no content length
                        self.memory.add(min(unannounced, len(chunk)))
        except TimeoutError:
            message = (
                f"the request body did not arrive within {self.state.limits.body_timeout_s:g} s (body_timeout_s); "
                "fix: send it faster, or send less"
            )
            raise ApiError(408, "body_timeout", message) from None
        # Starlette parses forms from it. It stays a bytearray: a copy of a large body would block the event loop.
        self._body = self.request._body = cast("bytes", body)  # pyright: ignore[reportPrivateUsage]

    async def read_json(self, schema: type[Body]) -> Body:
        """Parse and validate the JSON body."""
        if self.media_type != "application/json":
            message = f"unsupported content type {self.media_type!r}; fix: send application/json"
            raise ApiError(415, "unsupported_media_type", message)
        return parse_body(schema, await self.body())

    def resolve_model(self, name: str) -> ServedModel:
        """The model with this public name. Raises ApiError unless it is served at this endpoint."""
        return self.state.resolve_model(name, self.endpoint)

    @property
    def memory(self) -> Reservation:
        """Memory of the inputs of this request."""
        return self.context.reserve_memory(self.state.memory_budget)

    def media_inputs(self) -> MediaInputs:
        """Reader of the media of this request."""
        return MediaInputs(self.state.fetcher, self.memory, self.context.tenant_name)

    # ---------------------------------------------------------------- response
    def start_requests(
        self, served_model: ServedModel, *requests: Any, remaining_s: float | None = None
    ) -> ResponseStream:
        """Submit requests to the runtime. The stream is closed at the latest when the exchange ends."""
        stream = self.state.start_requests(served_model, *requests, context=self.context, remaining_s=remaining_s)
        self._streams.append(stream)
        return stream

    def event_stream(
        self,
        chunks: AsyncGenerator[bytes],
        to_event: Callable[[ApiError], bytes] | None = None,
        attach: Callable[[ResponseBody], None] | None = None,
    ) -> Response:
        """A server-sent events (SSE) response. An error in the middle becomes its last event, made by `to_event`.

        `attach` is that of `EventStreamResponse`.
        """
        return EventStreamResponse(chunks, functools.partial(self._last_event, to_event or _error_event), attach)

    def _last_event(self, to_event: Callable[[ApiError], bytes], error: BaseException) -> bytes | None:
        """Record an error in the middle of a stream, and make its event. None if the client has left."""
        if isinstance(error, asyncio.CancelledError):
            api_error = self.state.shutdown.take_cancellation()
        elif isinstance(error, ApiError):
            api_error = error
        else:
            assert isinstance(error, Exception), "no other exception becomes an event"
            api_error = report_exception(error, self.state, self.context)
        if api_error is None:
            return None
        self.context.record_error(api_error)
        return to_event(api_error)

    def close(self) -> None:
        """Cancel every request that was started and has not ended."""
        for stream in self._streams:
            stream.close()


class HttpHandler:
    """ASGI app of one HTTP endpoint: reads the body, runs the handler, cancels it when the client disconnects."""

    def __init__(self, state: ServerState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context: RequestContext = scope["request_context"]
        exchange = HttpExchange(self._state, self._endpoint, context, Request(scope, receive))
        context.enter_endpoint(self._endpoint, exchange.headers.get(SLO_HEADER.lower(), ""))
        flow: CancellableFlowControl = scope["state"][FLOW_CONTROL]
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        try:
            await self._receive(exchange)
            if flow.is_disconnected:
                raise ClientDisconnect
            flow.on_disconnect = task.cancel
            response = await self._endpoint.handler(exchange)
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if not flow.is_disconnected or flow.on_disconnect is None:  # cancelled from outside
                raise
            task.uncancel()
            context.status = CLIENT_CLOSED_REQUEST
        except ClientDisconnect:
            context.status = CLIENT_CLOSED_REQUEST
        except ClientStalled as error:  # a response without events: the connection is closed in the middle of it
            context.record_error(error)
        finally:
            flow.on_disconnect = None
            exchange.close()

    async def _receive(self, exchange: HttpExchange) -> None:
        """Read the body, unless the circuit is open. A body that can ask for best effort is read first."""
        marker = self._endpoint.best_effort_marker
        if marker:
            await exchange.receive_body()
        is_best_effort = bool(marker) and marker in await exchange.body()
        if not is_best_effort and (error := self._state.early_rejection(self._endpoint, exchange.context)) is not None:
            raise error
        if not marker:
            await exchange.receive_body()


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def sse_event(content: Any, name: str = "") -> bytes:
    """One server-sent event with JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


def _error_event(error: ApiError) -> bytes:
    return sse_event(error.content, "error")


def parse_body(schema: type[Body], content: bytes) -> Body:
    """Parse and validate JSON. Raises ApiError that names an invalid field."""
    check_value_count(content)
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        if errors[0]["type"] == "json_invalid":
            raise ApiError(400, "invalid_json", f"the body is not JSON: {errors[0]['msg']}") from None
        # Of a field with several types, the type that matches best has the deepest error.
        deepest = max(errors, key=lambda problem: len(problem["loc"]))
        field = _field_path(deepest["loc"])
        raise ApiError(400, "invalid_value", f"{field or 'the body'}: {deepest['msg']}", param=field or None) from None


def _field_path(location: tuple[int | str, ...]) -> str:
    """Path of a field as OpenAI writes it: `messages[0].role`. Names of the types of a union are left out."""
    path = ""
    for name in location:
        if isinstance(name, int):
            path += f"[{name}]"
        elif _FIELD_NAME.fullmatch(name) and name not in _TYPE_LABELS:
            path += f".{name}" if path else name
    return path


def check_value_count(content: bytes) -> None:
    """Raise ApiError if JSON can hold more than MAX_JSON_VALUES. Counts commas: base64 data has none."""
    if content.count(b",") >= MAX_JSON_VALUES:
        raise too_many_values_error()


def too_many_values_error() -> ApiError:
    """The error for a body with more than MAX_JSON_VALUES values."""
    return ApiError(
        413,
        "too_many_values",
        f"the body holds more than {MAX_JSON_VALUES} JSON values; fix: send arrays as base64 or msgpack bytes",
    )


def _body_too_large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"the request body exceeds the limit of {limit} bytes; fix: send less")
