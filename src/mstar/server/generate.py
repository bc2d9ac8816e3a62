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

from mstar.server import arrays
from mstar.server.live import Ended, Live
from mstar.server.reading import FormText, request_of
from mstar.server.refusals import Refusal
from mstar.server.schema import LONGEST_NAME, GenerateBody
from mstar.server.visit import Poured, Visit, event, refuse_crowded
from mstar.wire import messages as m

MSGPACK = "application/msgpack"
MAX_PARTS = 256


async def generate(visit: Visit) -> Response:
    """POST /v1/generate."""
    body = await _body(visit)
    served = visit.find(body.model)
    live = visit.open(served, request_of(served, body.request))
    await live.begun()
    if MSGPACK in visit.request.headers.get("accept", ""):
        return Poured(_frames(visit, live), MSGPACK, {"Cache-Control": "no-store"})
    return visit.events(_events(live))


# ---------------------------------------------------------------- what comes in
async def _body(visit: Visit) -> GenerateBody:
    match visit.media_type:
        case "application/json":
            refuse_crowded(await visit.body())
            return _checked(_decoded(msgspec.json.decode, await visit.body()))
        case "application/msgpack":
            return _checked(_decoded(msgspec.msgpack.decode, await visit.body()))
        case "multipart/form-data":
            return await _form(visit)
        case other:
            what = f"the content type is {other!r}; application/json, {MSGPACK} or multipart/form-data is needed"
            raise Refusal(415, "unsupported_media_type", what)


def _decoded(decode: Any, content: bytes) -> Any:
    try:
        return decode(content)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Refusal(400, "invalid_body", "the body cannot be decoded") from None


def _checked(value: Any) -> GenerateBody:
    told = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(name := told.get("model"), str) or not 0 < len(name) <= LONGEST_NAME:
        raise Refusal(422, "invalid_value", 'the body is {"model": name, "request": ...}', param="model")
    return GenerateBody(model=name, request=told.get("request"))


async def _form(visit: Visit) -> GenerateBody:
    limits = {"max_files": MAX_PARTS, "max_fields": MAX_PARTS, "max_part_size": visit.surface.body_bytes}
    async with visit.request.form(**limits) as form:
        if len({*form}) < len(form.multi_items()):
            raise Refusal(422, "invalid_value", "two parts of the form have the same name")
        parts = {name: await _part(name, part) for name, part in form.multi_items()}
    model = parts.pop("model", None)
    return _checked({"model": model, "request": parts.pop("request", {}) | parts})


async def _part(name: str, part: UploadFile | str) -> Any:
    """The model's name, the request as JSON, a text for a field, or a file by its type."""
    if isinstance(part, str):
        return _decoded(msgspec.json.decode, part.encode()) if name == "request" else FormText(part)
    content = await part.read()
    if part.content_type == "application/json":
        return _decoded(msgspec.json.decode, content)
    if (part.filename or "").endswith(".npy"):
        try:
            return arrays.from_npy(content)
        except arrays.BadArray as error:
            raise Refusal(422, "invalid_value", f"{name}: {error}", param=name) from None
    return content


# ---------------------------------------------------------------- what goes out
async def _told(live: Live, coded: Any) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    async for news in live:
        if isinstance(news, Ended):
            assert isinstance(news.end, m.Finished), "a refusal is raised"
            yield "result", {"result": arrays.plain(news.end.result.it, coded)}
        else:
            told = {"kind": news.kind, "index": news.index, "value": arrays.plain(news.value, coded)}
            yield "emission", told | dict(news.clock)


async def _events(live: Live) -> AsyncGenerator[bytes]:
    async for name, content in _told(live, arrays.in_base64):
        yield event(content, name)


async def _frames(visit: Visit, live: Live) -> AsyncGenerator[bytes]:
    try:
        async for _, content in _told(live, bytes):
            yield _frame(content)
    except Refusal as refusal:
        visit.passage.refused(refusal)
        yield _frame(refusal.content)


def _frame(content: dict[str, Any]) -> bytes:
    packed = msgspec.msgpack.encode(content)
    return len(packed).to_bytes(4, "little") + packed
