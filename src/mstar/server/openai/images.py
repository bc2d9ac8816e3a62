"""Image generation and editing endpoints (OpenAI `/v1/images/generations` and `/v1/images/edits`).

Responses carry the image as base64, whole or as a stream with partial images. Images are not stored, so
`response_format: url` is not supported. `quality` is accepted and ignored: it is up to the model.
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
"""Maximum pixels of an image that is generated."""
MAX_SOURCE_IMAGES = 16
"""Maximum source images of one edit."""


class ImageBody(StrictModel):
    """Body of `/v1/images/generations`."""

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
    """The same fields in a multipart form, where numbers arrive as text."""

    model_config = ConfigDict(strict=False)


async def generate(exchange: HttpExchange) -> Response:
    """POST /v1/images/generations."""
    return await _create_images(exchange, await exchange.read_json(ImageBody), "image_generation", (), None)


async def edit(exchange: HttpExchange) -> Response:
    """POST /v1/images/edits."""
    form = await read_form(exchange, ImageEditForm, {"image": MAX_SOURCE_IMAGES, "mask": 1})
    sources = await form.decode_images("image")
    if not sources:
        raise ApiError(400, "invalid_value", "image: missing. fix: send at least one image file", param="image")
    mask = next(iter(await form.decode_images("mask")), None)
    if mask is not None and mask.pixels.shape != sources[0].pixels.shape:
        size, needed = (f"{image.pixels.shape[1]}x{image.pixels.shape[0]}" for image in (mask, sources[0]))
        message = f"mask: the size is {size}, but the image is {needed}. fix: resize the mask to {needed}"
        raise ApiError(400, "invalid_value", message, param="mask")
    return await _create_images(exchange, form.body, "image_edit", sources, mask)


async def _create_images(
    exchange: HttpExchange, body: ImageBody, name: str, sources: tuple[ImageInput, ...], mask: ImageInput | None
) -> Response:
    served = exchange.resolve_model(body.model)
    _check_supported(body)
    first = _to_image_request(body, sources, mask)
    requests = [replace(first, seed=first.seed + index) for index in range(body.n or 1)]
    stream = exchange.start_requests(served, *requests)
    if body.stream:
        await stream.wait_first()
        return exchange.event_stream(_stream_events(stream, body, name))
    final_images, finishes = await _collect_images(stream)
    data = [{"b64_json": (await _encode_image(value, body)).b64_json} for _, value in sorted(final_images.items())]
    content = {"created": int(time.time()), "data": data, "output_format": body.output_format}
    return json_response(content | _usage(finishes))


def _check_supported(body: ImageBody) -> None:
    unsupported = {
        "response_format": (
            body.response_format == "url",
            "images are not stored. fix: use b64_json",
        ),
        "background": (body.background == "transparent", "transparent is not supported. fix: use opaque or auto"),
        "n": (
            body.stream and (body.n or 1) > 1,
            f"{body.n} images in one stream are not supported, the limit is 1. fix: set stream to false",
        ),
        "partial_images": (
            body.partial_images > 0 and not body.stream,
            f"{body.partial_images} partial images require a stream. fix: set stream to true",
        ),
    }
    for param, (is_requested, reason) in unsupported.items():
        if is_requested:
            raise ApiError(400, "unsupported_parameter", f"{param}: {reason}", param=param)


def _to_image_request(body: ImageBody, sources: tuple[ImageInput, ...], mask: ImageInput | None) -> ImageRequest:
    is_auto = body.size in (None, "auto")
    width, height = (0, 0) if is_auto else map(int, str(body.size).split("x"))
    if width * height > MAX_PIXELS:
        message = f"size: {body.size} has {width * height} pixels, the limit is {MAX_PIXELS}. fix: use a smaller size"
        raise ApiError(400, "invalid_value", message, param="size")
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


# ---------------------------------------------------------------- responses
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
    """Final image and `Finish` of each request."""
    final_images: dict[int, Any] = {}
    finishes: list[Finish] = []
    async for event in stream:
        if isinstance(event, RequestEnded):
            finishes += _finishes(event)
        elif event.kind == "Image":
            final_images[stream.index_of(event)] = event.value
    if len(final_images) < len(stream.rids):
        raise _no_image_error()
    return final_images, finishes


async def _stream_events(stream: ResponseStream, body: ImageBody, name: str) -> AsyncGenerator[bytes]:
    """Yield `NAME.partial_image` events, then `NAME.completed` with the final image."""
    last: Deliver | None = None
    common_fields = {"created_at": int(time.time()), "background": "opaque", "quality": "auto"}
    common_fields["output_format"] = body.output_format
    finishes: list[Finish] = []
    async for event in stream:
        if isinstance(event, RequestEnded):
            finishes = _finishes(event)
        elif event.kind == "Image":
            last = event
            if event.index < body.partial_images:
                kind, image = f"{name}.partial_image", await _encode_image(event.value, body)
                content = {
                    "type": kind,
                    "b64_json": image.b64_json,
                    "partial_image_index": event.index,
                    "size": image.size,
                }
                yield sse_event(content | common_fields, kind)
    if last is None:
        raise _no_image_error()
    kind, image = f"{name}.completed", await _encode_image(last.value, body)
    content = {"type": kind, "b64_json": image.b64_json, "size": image.size}
    yield sse_event(content | common_fields | _usage(finishes), kind)


def _no_image_error() -> ApiError:
    return ApiError(500, "model_error", "the model produced no image")


def _finishes(event: RequestEnded) -> list[Finish]:
    result = event.end.result.content if isinstance(event.end, m.RequestFinished) else None
    return [result] if isinstance(result, Finish) else []


def _usage(finishes: list[Finish]) -> dict[str, Any]:
    """Token usage, if the model reports it. Output tokens are 0: images are not counted in tokens."""
    if not finishes:
        return {}
    counts = {kind: sum(finish.prompt_tokens.get(kind, 0) for finish in finishes) for kind in ("text", "image")}
    total = sum(counts.values())
    details = {f"{kind}_tokens": count for kind, count in counts.items()}
    return {
        "usage": {"input_tokens": total, "input_tokens_details": details, "output_tokens": 0, "total_tokens": total}
    }
