"""A visit: one HTTP request of one client, from the reading of its body to the end of its answer.

When the client leaves, the surface that serves it is cancelled where it waits, and all that was opened for it is
closed. Who may come in was decided before; what is asked for is read by the surfaces.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mstar.frontend.response_stream import ResponseStream
from mstar.server.access.api_keys import Tenant
from mstar.server.access.slo import SLO_HEADER, apply_slo_header, as_best_effort
from mstar.server.errors import ApiError
from mstar.server.state import Endpoint, ServedModel, ServerState
from mstar.wire.slo import Slo

log = logging.getLogger("mstar.server")

Body = TypeVar("Body", bound=BaseModel)

MAX_JSON_VALUES = 250_000
"""So many values a body may hold: while more of them were read, all other clients would wait."""
CLIENT_CLOSED_REQUEST = 499
"""The status of a visit whose client has left."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
INTERNAL_ERROR = ApiError(500, "internal_error", "something went wrong in the server")


class RequestContext:
    """What is known of a client's request before it is read, and how it ended."""

    __slots__ = ("code", "endpoint", "id", "slo", "status", "tenant")

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.tenant: Tenant | None = None
        self.slo = Slo()
        """What its client is promised."""
        self.endpoint = "none"
        self.status = CLIENT_CLOSED_REQUEST
        self.code = ""
        """Of a refusal."""

    @property
    def tenant_name(self) -> str:
        """Whose request it is."""
        return self.tenant.name if self.tenant else ""

    def enter_endpoint(self, endpoint: Endpoint, slo_header: str) -> None:
        """It has come to a surface, with a wish for its pace. Raises Refusal if that cannot be read."""
        self.endpoint = endpoint.path
        pace = self.tenant.slo if self.tenant else Slo()
        self.slo = apply_slo_header(as_best_effort(pace) if endpoint.best_effort else pace, slo_header)

    def record_error(self, error: ApiError) -> None:
        """It ends with a refusal, whatever was said before."""
        self.status, self.code = error.status, error.code


def request_id_from(given: str) -> str:
    """What a request is called: as its client says, if that is a name."""
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class HttpExchange:
    """One request of one client, for a surface to serve."""

    def __init__(self, state: ServerState, endpoint: Endpoint, context: RequestContext, request: Request) -> None:
        self.state = state
        self.endpoint = endpoint
        self.context = context
        self.request = request
        self._streams: list[ResponseStream] = []

    # ---------------------------------------------------------------- what the client brings
    @property
    def media_type(self) -> str:
        """The type of the body."""
        return self.request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()

    async def body(self) -> bytes:
        """The body, which is not larger than it may be."""
        return await self.request.body()  # it was read by `receive_body`

    async def receive_body(self) -> None:
        """Read the body, unless it is too large or comes too slowly."""
        limit = self.endpoint.max_body_bytes
        told = self.request.headers.get("content-length", "0")
        if not told.isdigit() or int(told) > limit:
            raise _body_too_large(limit)
        read = bytearray()
        try:
            async with asyncio.timeout(self.state.limits.body_timeout_s):
                async for piece in self.request.stream():
                    read += piece
                    if len(read) > limit:
                        raise _body_too_large(limit)
        except TimeoutError:
            raise ApiError(408, "body_timeout", "the body did not come in time") from None
        self.request._body = bytes(read)  # pyright: ignore[reportPrivateUsage]  # where forms are read from

    async def read_json(self, schema: type[Body]) -> Body:
        """The JSON body, as a schema says."""
        if self.media_type != "application/json":
            what = f"the content type is {self.media_type!r}, and application/json is needed"
            raise ApiError(415, "unsupported_media_type", what)
        return parse_body(schema, await self.body())

    def resolve_model(self, name: str) -> ServedModel:
        """The model that the client named, if it is served here."""
        return self.state.resolve_model(name, self.endpoint)

    # ---------------------------------------------------------------- what the client gets
    def start_requests(self, served_model: ServedModel, *requests: Any) -> ResponseStream:
        """Have requests served; they end with the visit at the latest."""
        live = self.state.start_requests(served_model, *requests, context=self.context)
        self._streams.append(live)
        return live

    def event_stream(self, chunks: AsyncGenerator[bytes]) -> Response:
        """A stream of events. What goes wrong in it is its last event."""
        return StreamResponse(self._with_error_event(chunks), "text/event-stream", {"Cache-Control": "no-store"})

    async def _with_error_event(self, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except ApiError as refusal:
            self.context.record_error(refusal)
            yield sse_event(refusal.content, "error")
        except Exception:
            log.exception("request %s", self.context.id)
            self.context.record_error(INTERNAL_ERROR)
            yield sse_event(INTERNAL_ERROR.content, "error")

    def close(self) -> None:
        """Want no more of what was opened."""
        for live in self._streams:
            live.close()


class StreamResponse(StreamingResponse):
    """A body that is sent as it is made."""

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as every response
        """Send it. Whether the client is still there, a visit watches."""
        async with aclosing(self._chunks):
            await self.stream_response(send)


class HttpHandler:
    """A surface as an application of its own: reads, serves, and stops when the client leaves."""

    def __init__(self, state: ServerState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage: RequestContext = scope["request_context"]
        visit = HttpExchange(self._state, self._endpoint, passage, Request(scope, receive))
        passage.enter_endpoint(self._endpoint, visit.request.headers.get(SLO_HEADER, ""))
        try:
            await self._receive(visit)
            await cancel_on_disconnect(receive, self._serve(visit, scope, receive, send))
        except ClientDisconnect:
            passage.status = CLIENT_CLOSED_REQUEST
        finally:
            visit.close()

    async def _receive(self, exchange: HttpExchange) -> None:
        """Read the body, unless it would be refused. One that may say that it can wait is read before that is known."""
        patient = self._endpoint.best_effort_marker
        if patient:
            await exchange.receive_body()
        is_patient = bool(patient) and patient in await exchange.body()
        if not is_patient and (refusal := self._state.early_rejection(self._endpoint, exchange.context)) is not None:
            raise refusal
        if not patient:
            await exchange.receive_body()

    async def _serve(self, exchange: HttpExchange, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint.handler(exchange)
        await response(scope, receive, send)


async def cancel_on_disconnect(receive: Receive, work: Awaitable[None]) -> None:
    """Work as long as the client is there."""
    task = asyncio.current_task()
    assert task is not None, "a server runs in tasks"

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not watcher.done():  # somebody else wants the end
            raise
        task.uncancel()
        raise ClientDisconnect from None
    finally:
        watcher.cancel()


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def sse_event(content: Any, name: str = "") -> bytes:
    """One event of a stream."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


def parse_body(schema: type[Body], content: bytes) -> Body:
    """JSON as a schema says. Raises Refusal, which names what is wrong."""
    check_value_count(content)
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, "invalid_json", f"the body is not JSON: {first['msg']}") from None
        where = ".".join(map(str, first["loc"]))
        raise ApiError(422, "invalid_value", f"{where or 'the body'}: {first['msg']}", param=where or None) from None


def check_value_count(content: bytes) -> None:
    """Refuse JSON that may hold more values than can be read while others wait. A file in base64 has no commas."""
    if content.count(b",") >= MAX_JSON_VALUES:
        raise too_many_values_error()


def too_many_values_error() -> ApiError:
    """A refusal of what holds too many values."""
    return ApiError(
        413, "too_many_values", f"a body may hold {MAX_JSON_VALUES} values, and this holds more; send arrays as bytes"
    )


def _body_too_large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"the body may have {limit} bytes, and has more")
