"""Any model in its own terms: what its route takes comes in, its emissions and its result go out.

The body is JSON or msgpack, {"model", "request"}, or a form whose other parts are fields of the request: .npy files,
JSON or text. The answer is a stream: events of JSON, or with `Accept: application/msgpack` frames of four bytes of
length, lowest first, and a map. The last one holds the result, or says what went wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
from starlette.datastructures import UploadFile
from starlette.responses import Response

from mstar.frontend.response_stream import RequestEnded, ResponseStream
from mstar.server import arrays
from mstar.server.errors import ApiError
from mstar.server.generic.request_parsing import FormText, parse_request
from mstar.server.http_exchange import HttpExchange, StreamResponse, check_value_count, sse_event
from mstar.server.openai.schema import MAX_NAME_CHARS, GenerateBody
from mstar.wire import messages as m

MSGPACK = "application/msgpack"
MAX_FORM_PARTS = 256


async def generate(exchange: HttpExchange) -> Response:
    """POST /v1/generate."""
    body = await _read_body(exchange)
    served = exchange.resolve_model(body.model)
    live = exchange.start_requests(served, parse_request(served, body.request))
    await live.wait_first()
    if MSGPACK in exchange.request.headers.get("accept", ""):
        return StreamResponse(_msgpack_frames(exchange, live), MSGPACK, {"Cache-Control": "no-store"})
    return exchange.event_stream(_sse_events(live))


# ---------------------------------------------------------------- what comes in
async def _read_body(exchange: HttpExchange) -> GenerateBody:
    match exchange.media_type:
        case "application/json":
            check_value_count(await exchange.body())
            return _validate_body(_decode(msgspec.json.decode, await exchange.body()))
        case "application/msgpack":
            return _validate_body(_decode(msgspec.msgpack.decode, await exchange.body()))
        case "multipart/form-data":
            return await _read_form(exchange)
        case other:
            what = f"the content type is {other!r}; application/json, {MSGPACK} or multipart/form-data is needed"
            raise ApiError(415, "unsupported_media_type", what)


def _decode(decode: Any, content: bytes) -> Any:
    try:
        return decode(content)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise ApiError(400, "invalid_body", "the body cannot be decoded") from None


def _validate_body(value: Any) -> GenerateBody:
    told = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(name := told.get("model"), str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise ApiError(422, "invalid_value", 'the body is {"model": name, "request": ...}', param="model")
    return GenerateBody(model=name, request=told.get("request"))


async def _read_form(exchange: HttpExchange) -> GenerateBody:
    limits = {
        "max_files": MAX_FORM_PARTS,
        "max_fields": MAX_FORM_PARTS,
        "max_part_size": exchange.endpoint.max_body_bytes,
    }
    async with exchange.request.form(**limits) as form:
        if len({*form}) < len(form.multi_items()):
            raise ApiError(422, "invalid_value", "two parts of the form have the same name")
        parts = {name: await _decode_part(name, part) for name, part in form.multi_items()}
    model = parts.pop("model", None)
    return _validate_body({"model": model, "request": parts.pop("request", {}) | parts})


async def _decode_part(name: str, part: UploadFile | str) -> Any:
    """The model's name, the request as JSON, a text for a field, or a file by its type."""
    if isinstance(part, str):
        return _decode(msgspec.json.decode, part.encode()) if name == "request" else FormText(part)
    content = await part.read()
    if part.content_type == "application/json":
        return _decode(msgspec.json.decode, content)
    if (part.filename or "").endswith(".npy"):
        try:
            return arrays.from_npy(content)
        except arrays.BadArray as error:
            raise ApiError(422, "invalid_value", f"{name}: {error}", param=name) from None
    return content


# ---------------------------------------------------------------- what goes out
async def _encode_outputs(stream: ResponseStream, encode_bytes: Any) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    async for news in stream:
        if isinstance(news, RequestEnded):
            assert isinstance(news.end, m.RequestFinished), "a refusal is raised"
            yield "result", {"result": arrays.to_plain(news.end.result.content, encode_bytes)}
        else:
            told = {"kind": news.kind, "index": news.index, "value": arrays.to_plain(news.value, encode_bytes)}
            yield "emission", told | dict(news.clock)


async def _sse_events(stream: ResponseStream) -> AsyncGenerator[bytes]:
    async for name, content in _encode_outputs(stream, arrays.to_base64):
        yield sse_event(content, name)


async def _msgpack_frames(exchange: HttpExchange, stream: ResponseStream) -> AsyncGenerator[bytes]:
    try:
        async for _, content in _encode_outputs(stream, bytes):
            yield _encode_frame(content)
    except ApiError as refusal:
        exchange.context.record_error(refusal)
        yield _encode_frame(refusal.content)


def _encode_frame(content: dict[str, Any]) -> bytes:
    packed = msgspec.msgpack.encode(content)
    return len(packed).to_bytes(4, "little") + packed
