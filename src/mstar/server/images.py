"""Images: a text, and perhaps pictures, in; pictures out, whole or sharper and sharper as they are drawn.

A picture is handed over in the answer and kept nowhere, so there are no addresses of pictures. How fine a picture gets
is up to the model: `quality` is taken and changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.responses import Response

from mstar.asks import Drawing, Ending, Picture
from mstar.media import pictures
from mstar.server.forms import read_form
from mstar.server.live import Deliver, Ended, Live
from mstar.server.refusals import Refusal
from mstar.server.schema import Name, Seed, Strict
from mstar.server.visit import Visit, answered, event
from mstar.wire import messages as m

PIXELS = 4096 * 4096
SOURCES = 16
"""So many pictures may be changed into one."""


class DrawingBody(Strict):
    """What a client wants drawn."""

    model: Name
    prompt: Annotated[str, Field(min_length=1, max_length=32_000)]
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    size: Annotated[str, Field(pattern=r"^(auto|[1-9]\d{0,3}x[1-9]\d{0,3})$")] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"] | None = None
    background: Literal["auto", "opaque", "transparent"] | None = None
    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] = 100
    response_format: Literal["b64_json", "url"] | None = None
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    negative_prompt: Annotated[str, Field(max_length=32_000)] = ""
    num_inference_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    seed: Seed | None = None


class DrawingForm(DrawingBody):
    """The same in a form, where everything is a text."""

    model_config = ConfigDict(strict=False)


async def generate(visit: Visit) -> Response:
    """POST /v1/images/generations."""
    return await _draw(visit, await visit.read(DrawingBody), "image_generation", (), None)


async def edit(visit: Visit) -> Response:
    """POST /v1/images/edits."""
    form = await read_form(visit, DrawingForm, {"image": SOURCES, "mask": 1})
    sources = await form.pictures("image")
    if not sources:
        raise Refusal(422, "invalid_value", "image: a picture is needed", param="image")
    mask = next(iter(await form.pictures("mask")), None)
    if mask is not None and mask.pixels.shape != sources[0].pixels.shape:
        (height, width, _), (high, wide, _) = mask.pixels.shape, sources[0].pixels.shape
        what = f"mask: it has {width} x {height} pixels, and the picture {wide} x {high}"
        raise Refusal(422, "invalid_value", what, param="mask")
    return await _draw(visit, form.body, "image_edit", sources, mask)


async def _draw(
    visit: Visit, body: DrawingBody, name: str, sources: tuple[Picture, ...], mask: Picture | None
) -> Response:
    served = visit.find(body.model)
    _refuse_unsupported(body)
    ask = _drawing(body, sources, mask)
    live = visit.open(served, *(replace(ask, seed=ask.seed + number) for number in range(body.n or 1)))
    if body.stream:
        await live.begun()
        return visit.events(_shown(live, body, name))
    last, endings = await _finished(live)
    data = [{"b64_json": (await _file(value, body)).coded} for _, value in sorted(last.items())]
    answer = {"created": int(time.time()), "data": data, "output_format": body.output_format}
    return answered(answer | _usage(endings))


def _refuse_unsupported(body: DrawingBody) -> None:
    unsupported = {
        "response_format": (body.response_format == "url", "pictures are not kept here; use b64_json"),
        "background": (body.background == "transparent", "pictures have no transparency here"),
        "n": (body.stream and (body.n or 1) > 1, "a stream shows one picture"),
        "partial_images": (body.partial_images > 0 and not body.stream, "partial pictures are shown in a stream only"),
    }
    for param, (is_wished, what) in unsupported.items():
        if is_wished:
            raise Refusal(400, "unsupported_parameter", f"{param}: {what}", param=param)


def _drawing(body: DrawingBody, sources: tuple[Picture, ...], mask: Picture | None) -> Drawing:
    is_free = body.size in (None, "auto")
    width, height = (0, 0) if is_free else map(int, str(body.size).split("x"))
    if width * height > PIXELS:
        raise Refusal(422, "invalid_value", f"size: {body.size} is more than {PIXELS} pixels", param="size")
    return Drawing(
        prompt=body.prompt,
        width=width,
        height=height,
        steps=body.num_inference_steps or 0,
        guidance=body.guidance_scale or 0.0,
        negative=body.negative_prompt,
        seed=body.seed if body.seed is not None else secrets.randbits(62),
        partials=body.partial_images if body.stream else 0,
        sources=sources,
        mask=mask,
    )


# ---------------------------------------------------------------- what is answered
@dataclass(frozen=True, slots=True)
class _File:
    coded: str
    size: str


async def _file(value: Any, body: DrawingBody) -> _File:
    data, (width, height) = await asyncio.to_thread(pictures.encode, value, body.output_format, body.output_compression)
    return _File(b64encode(data).decode(), f"{width}x{height}")


async def _finished(live: Live) -> tuple[dict[int, Any], list[Ending]]:
    """The last picture of each request, and how each ended."""
    last: dict[int, Any] = {}
    endings: list[Ending] = []
    async for news in live:
        if isinstance(news, Ended):
            endings += _ending(news)
        elif news.kind == "Image":
            last[live.number(news)] = news.value
    if len(last) < len(live.rids):
        raise _nothing()
    return last, endings


async def _shown(live: Live, body: DrawingBody, name: str) -> AsyncGenerator[bytes]:
    """The first pictures as they come, and the last one as the result."""
    last: Deliver | None = None
    head = {"created_at": int(time.time()), "background": "opaque", "quality": "auto"}
    head["output_format"] = body.output_format
    endings: list[Ending] = []
    async for news in live:
        if isinstance(news, Ended):
            endings = _ending(news)
        elif news.kind == "Image":
            last = news
            if news.index < body.partial_images:
                kind, file = f"{name}.partial_image", await _file(news.value, body)
                content = {"type": kind, "b64_json": file.coded, "partial_image_index": news.index, "size": file.size}
                yield event(content | head, kind)
    if last is None:
        raise _nothing()
    kind, file = f"{name}.completed", await _file(last.value, body)
    yield event({"type": kind, "b64_json": file.coded, "size": file.size} | head | _usage(endings), kind)


def _nothing() -> Refusal:
    return Refusal(500, "model_error", "the model drew nothing")


def _ending(news: Ended) -> list[Ending]:
    result = news.end.result.it if isinstance(news.end, m.Finished) else None
    return [result] if isinstance(result, Ending) else []


def _usage(endings: list[Ending]) -> dict[str, Any]:
    """What was read, if the model says. Pictures are not made of tokens, so none are written."""
    if not endings:
        return {}
    read = {kind: sum(one.read.get(kind, 0) for one in endings) for kind in ("text", "image")}
    total = sum(read.values())
    details = {f"{kind}_tokens": count for kind, count in read.items()}
    return {
        "usage": {"input_tokens": total, "input_tokens_details": details, "output_tokens": 0, "total_tokens": total}
    }
