"""Generic endpoint (`/v1/generate`) for any model: the request type of its route in, its emissions and result out.

The body is JSON or msgpack (`{"model", "request"}`), or a multipart form whose other parts are fields of the request:
.npy files, JSON or text. The response is a stream: SSE events with JSON, or with `Accept: application/msgpack` frames,
each a 4-byte little-endian length and a msgpack map. The last event or frame holds the result or the error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import msgspec
from starlette.datastructures import UploadFile
from starlette.responses import Response

from mstar.frontend.response_stream import RequestEnded, ResponseStream
from mstar.requests import ChatRequest
from mstar.server import arrays
from mstar.server.errors import ApiError
from mstar.server.generic.request_parsing import FormText, parse_request
from mstar.server.http_exchange import HttpExchange, check_value_count, sse_event
from mstar.server.inputs.msgpack_scan import check_msgpack_value_count
from mstar.server.openai.schema import MAX_NAME_CHARS, GenerateBody
from mstar.server.openai.schema_limits import check_grammar
from mstar.server.stream_response import StreamResponse
from mstar.wire import messages as m

MSGPACK = "application/msgpack"
MAX_FORM_PARTS = 256
"""Maximum files of a form, and maximum other fields of it."""


async def generate(exchange: HttpExchange) -> Response:
    """POST /v1/generate."""
    body = await _read_body(exchange)
    served = exchange.resolve_model(body.model)
    request = parse_request(served, body.request)
    if isinstance(request, ChatRequest) and (grammar := request.sampling.grammar) is not None:
        check_grammar(grammar, "request.sampling.grammar")
    if served.adapter is not None and isinstance(request, ChatRequest):
        request = replace(request, sampling=replace(request.sampling, adapter=served.adapter))
    stream = exchange.start_requests(served, request)
    await stream.wait_first()
    if MSGPACK in exchange.headers.get("accept", ""):
        return StreamResponse(_msgpack_frames(exchange, stream), MSGPACK, {"Cache-Control": "no-store"})
    return exchange.event_stream(_sse_events(stream))


# ---------------------------------------------------------------- request
async def _read_body(exchange: HttpExchange) -> GenerateBody:
    match exchange.media_type:
        case "application/json":
            return _validate_body(_decode_json(await exchange.body()))
        case "application/msgpack":
            await check_msgpack_value_count(await exchange.body())
            return _validate_body(_decode(msgspec.msgpack.decode, await exchange.body()))
        case "multipart/form-data":
            return await _read_form(exchange)
        case other:
            message = (
                f"unsupported content type {other!r}. fix: send application/json, {MSGPACK} or multipart/form-data"
            )
            raise ApiError(415, "unsupported_media_type", message)


def _decode_json(content: bytes) -> Any:
    check_value_count(content)
    return _decode(msgspec.json.decode, content)


def _decode(decode: Any, content: bytes) -> Any:
    try:
        return decode(content)
    except (msgspec.DecodeError, RecursionError, ValueError):
        message = "the body does not match its content type. fix: send valid JSON or msgpack"
        raise ApiError(400, "invalid_body", message) from None


def _validate_body(value: Any) -> GenerateBody:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(name := fields.get("model"), str) or not 0 < len(name) <= MAX_NAME_CHARS:
        message = f'model: missing or over {MAX_NAME_CHARS} characters. fix: send {{"model": NAME, "request": ...}}'
        raise ApiError(422, "invalid_value", message, param="model")
    return GenerateBody(model=name, request=fields.get("request"))


async def _read_form(exchange: HttpExchange) -> GenerateBody:
    limits = {
        "max_files": MAX_FORM_PARTS,
        "max_fields": MAX_FORM_PARTS,
        "max_part_size": exchange.endpoint.max_body_bytes,
    }
    async with exchange.request.form(**limits) as form:
        if len({*form}) < len(form.multi_items()):
            message = "two parts of the form have the same name. fix: send each field once; a list is one JSON part"
            raise ApiError(422, "invalid_value", message)
        parts = {name: await _decode_part(name, part) for name, part in form.multi_items()}
    model, request = parts.pop("model", None), parts.pop("request", {})
    if not isinstance(request, dict):
        message = "request: the part of a form is not a JSON object. fix: send an object, or send its fields as parts"
        raise ApiError(400, "invalid_body", message, param="request")
    return _validate_body({"model": model, "request": cast("dict[str, Any]", request) | parts})


async def _decode_part(name: str, part: UploadFile | str) -> Any:
    """Decode one part: the request as JSON, a field as text, or a file by its content type or .npy name."""
    if isinstance(part, str):
        return _decode_json(part.encode()) if name == "request" else FormText(part)
    content = await part.read()
    if part.content_type == "application/json":
        return _decode_json(content)
    if (part.filename or "").endswith(".npy"):
        try:
            return arrays.from_npy(content)
        except arrays.BadArray as error:
            raise ApiError(422, "invalid_value", f"{name}: {error}", param=name) from None
    return content


# ---------------------------------------------------------------- response
async def _encode_outputs(stream: ResponseStream, encode_bytes: Any) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Yield (event name, content) for each emission and for the result."""
    async for event in stream:
        if isinstance(event, RequestEnded):
            assert isinstance(event.end, m.RequestFinished), "the stream raises ApiError for a rejected request"
            yield "result", {"result": arrays.to_plain(event.end.result.content, encode_bytes)}
        else:
            content = {"kind": event.kind, "index": event.index, "value": arrays.to_plain(event.value, encode_bytes)}
            yield "emission", content | dict(event.clock)


async def _sse_events(stream: ResponseStream) -> AsyncGenerator[bytes]:
    async for name, content in _encode_outputs(stream, arrays.to_base64):
        yield sse_event(content, name)


async def _msgpack_frames(exchange: HttpExchange, stream: ResponseStream) -> AsyncGenerator[bytes]:
    try:
        async for _, content in _encode_outputs(stream, bytes):
            yield _encode_frame(content)
    except ApiError as error:
        exchange.context.record_error(error)
        yield _encode_frame(error.content)


def _encode_frame(content: dict[str, Any]) -> bytes:
    packed = msgspec.msgpack.encode(content)
    return len(packed).to_bytes(4, "little") + packed
