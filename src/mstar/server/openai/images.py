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

from mstar.frontend.response_stream import Deliver, RequestEnded, ResponseStream
from mstar.media import images
from mstar.requests import Finish, ImageInput, ImageRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response, sse_event
from mstar.server.inputs.multipart import read_form
from mstar.server.openai.schema import Name, Seed, StrictModel
from mstar.wire import messages as m

MAX_PIXELS = 4096 * 4096
MAX_SOURCE_IMAGES = 16
"""So many pictures may be changed into one."""


class ImageBody(StrictModel):
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


class ImageEditForm(ImageBody):
    """The same in a form, where everything is a text."""

    model_config = ConfigDict(strict=False)


async def generate(exchange: HttpExchange) -> Response:
    """POST /v1/images/generations."""
    return await _create_images(exchange, await exchange.read_json(ImageBody), "image_generation", (), None)


async def edit(exchange: HttpExchange) -> Response:
    """POST /v1/images/edits."""
    form = await read_form(exchange, ImageEditForm, {"image": MAX_SOURCE_IMAGES, "mask": 1})
    sources = await form.decode_images("image")
    if not sources:
        raise ApiError(422, "invalid_value", "image: a picture is needed", param="image")
    mask = next(iter(await form.decode_images("mask")), None)
    if mask is not None and mask.pixels.shape != sources[0].pixels.shape:
        (height, width, _), (high, wide, _) = mask.pixels.shape, sources[0].pixels.shape
        what = f"mask: it has {width} x {height} pixels, and the picture {wide} x {high}"
        raise ApiError(422, "invalid_value", what, param="mask")
    return await _create_images(exchange, form.body, "image_edit", sources, mask)


async def _create_images(
    exchange: HttpExchange, body: ImageBody, name: str, sources: tuple[ImageInput, ...], mask: ImageInput | None
) -> Response:
    served = exchange.resolve_model(body.model)
    _check_supported(body)
    ask = _to_image_request(body, sources, mask)
    live = exchange.start_requests(served, *(replace(ask, seed=ask.seed + number) for number in range(body.n or 1)))
    if body.stream:
        await live.wait_first()
        return exchange.event_stream(_stream_events(live, body, name))
    last, endings = await _collect_images(live)
    data = [{"b64_json": (await _encode_image(value, body)).b64_json} for _, value in sorted(last.items())]
    answer = {"created": int(time.time()), "data": data, "output_format": body.output_format}
    return json_response(answer | _usage(endings))


def _check_supported(body: ImageBody) -> None:
    unsupported = {
        "response_format": (body.response_format == "url", "pictures are not kept here; use b64_json"),
        "background": (body.background == "transparent", "pictures have no transparency here"),
        "n": (body.stream and (body.n or 1) > 1, "a stream shows one picture"),
        "partial_images": (body.partial_images > 0 and not body.stream, "partial pictures are shown in a stream only"),
    }
    for param, (is_wished, what) in unsupported.items():
        if is_wished:
            raise ApiError(400, "unsupported_parameter", f"{param}: {what}", param=param)


def _to_image_request(body: ImageBody, sources: tuple[ImageInput, ...], mask: ImageInput | None) -> ImageRequest:
    is_free = body.size in (None, "auto")
    width, height = (0, 0) if is_free else map(int, str(body.size).split("x"))
    if width * height > MAX_PIXELS:
        raise ApiError(422, "invalid_value", f"size: {body.size} is more than {MAX_PIXELS} pixels", param="size")
    return ImageRequest(
        prompt=body.prompt,
        width=width,
        height=height,
        steps=body.num_inference_steps or 0,
        guidance=body.guidance_scale or 0.0,
        negative_prompt=body.negative_prompt,
        seed=body.seed if body.seed is not None else secrets.randbits(62),
        partial_images=body.partial_images if body.stream else 0,
        sources=sources,
        mask=mask,
    )


# ---------------------------------------------------------------- what is answered
@dataclass(frozen=True, slots=True)
class _EncodedImage:
    b64_json: str
    size: str


async def _encode_image(value: Any, body: ImageBody) -> _EncodedImage:
    data, (width, height) = await asyncio.to_thread(
        images.encode_image, value, body.output_format, body.output_compression
    )
    return _EncodedImage(b64encode(data).decode(), f"{width}x{height}")


async def _collect_images(stream: ResponseStream) -> tuple[dict[int, Any], list[Finish]]:
    """The last picture of each request, and how each ended."""
    last: dict[int, Any] = {}
    endings: list[Finish] = []
    async for news in stream:
        if isinstance(news, RequestEnded):
            endings += _finishes(news)
        elif news.kind == "Image":
            last[stream.index_of(news)] = news.value
    if len(last) < len(stream.rids):
        raise _no_image_error()
    return last, endings


async def _stream_events(stream: ResponseStream, body: ImageBody, name: str) -> AsyncGenerator[bytes]:
    """The first pictures as they come, and the last one as the result."""
    last: Deliver | None = None
    head = {"created_at": int(time.time()), "background": "opaque", "quality": "auto"}
    head["output_format"] = body.output_format
    endings: list[Finish] = []
    async for news in stream:
        if isinstance(news, RequestEnded):
            endings = _finishes(news)
        elif news.kind == "Image":
            last = news
            if news.index < body.partial_images:
                kind, file = f"{name}.partial_image", await _encode_image(news.value, body)
                content = {
                    "type": kind,
                    "b64_json": file.b64_json,
                    "partial_image_index": news.index,
                    "size": file.size,
                }
                yield sse_event(content | head, kind)
    if last is None:
        raise _no_image_error()
    kind, file = f"{name}.completed", await _encode_image(last.value, body)
    yield sse_event({"type": kind, "b64_json": file.b64_json, "size": file.size} | head | _usage(endings), kind)


def _no_image_error() -> ApiError:
    return ApiError(500, "model_error", "the model drew nothing")


def _finishes(event: RequestEnded) -> list[Finish]:
    result = event.end.result.content if isinstance(event.end, m.RequestFinished) else None
    return [result] if isinstance(result, Finish) else []


def _usage(finishes: list[Finish]) -> dict[str, Any]:
    """What was read, if the model says. Pictures are not made of tokens, so none are written."""
    if not finishes:
        return {}
    read = {kind: sum(one.prompt_tokens.get(kind, 0) for one in finishes) for kind in ("text", "image")}
    total = sum(read.values())
    details = {f"{kind}_tokens": count for kind, count in read.items()}
    return {
        "usage": {"input_tokens": total, "input_tokens_details": details, "output_tokens": 0, "total_tokens": total}
    }
