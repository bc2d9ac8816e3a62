"""Traffic feed: every request that ends, with its times, shapes and sampling parameters and the amount of its outputs.

That is enough to send the same load again. Contents are left out for subscribers that do not ask for them. Without a
subscriber nothing is collected. A subscriber that reads too slowly loses requests, and gets their number. `capture` has
the endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from mstar.requests import (
    AudioInput,
    ChatRequest,
    EmbeddingRequest,
    Finish,
    ImageInput,
    ImageRequest,
    Sampling,
    SpeechRequest,
    TranscriptionRequest,
    VideoInput,
)
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.errors import ApiError
from mstar.wire.slo import Slo

MAX_SUBSCRIBERS = 4
MAX_QUEUED_REQUESTS = 4096
"""Maximum number of requests queued for a slow subscriber."""
MAX_TEXT_CHARACTERS = 32 * 1024
"""Maximum characters of a captured text; the rest is dropped."""
RETRY_AFTER_S = 15.0
"""Retry-After, in seconds, if there are too many subscribers."""
_KINDS = {
    ChatRequest: "chat",
    SpeechRequest: "speech",
    TranscriptionRequest: "transcriptions",
    ImageRequest: "images",
    EmbeddingRequest: "embeddings",
}
"""Kind of traffic, as in `mstar bench serve`, by request type; of any other type, its name."""
_IMAGE_FIELDS = ("steps", "guidance", "seed", "partial_images")
_SAMPLING_FIELDS = ("max_tokens", "temperature", "top_p", "seed")
_DEFAULT_SAMPLING = Sampling()


class TrafficSubscriber(NamedTuple):
    """One client that captures traffic."""

    queue: asyncio.Queue[dict[str, Any]]
    has_contents: bool
    lost: list[int]
    """Number of requests that did not fit into the queue since the last event."""


class TrafficFeed:
    """Publishes requests that have ended to subscribers."""

    def __init__(self) -> None:
        self._subscribers: list[TrafficSubscriber] = []

    @property
    def is_active(self) -> bool:
        """Whether there is a subscriber."""
        return bool(self._subscribers)

    def begin(self, record: RequestRecord, requests: Sequence[Any]) -> None:
        """Note the shape of a request that starts. The first of a WebSocket counts."""
        if record.shape is None and requests:
            record.shape = describe_request(requests[0])
            if len(requests) > 1:
                record.shape["input"]["requests"] = len(requests)
            if any(subscriber.has_contents for subscriber in self._subscribers):
                record.shape["text"] = _text_of(requests[0])[:MAX_TEXT_CHARACTERS]

    def end(self, record: RequestRecord) -> None:
        """Publish a request that has ended."""
        if record.shape is None:
            return
        content = _describe_end(record)
        text = content.pop("text", None)
        for subscriber in self._subscribers:
            if subscriber.queue.full():
                subscriber.lost[0] += 1
            else:
                shows_text = subscriber.has_contents and text is not None
                subscriber.queue.put_nowait(content | ({"text": text} if shows_text else {}))

    def require_place(self) -> None:
        """Raise ApiError if there are too many subscribers."""
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            message = f"{MAX_SUBSCRIBERS} clients capture traffic already; fix: end one of them first"
            raise ApiError(429, "too_many_streams", message, retry_after=RETRY_AFTER_S)

    def subscribe(self, *, has_contents: bool) -> TrafficSubscriber:
        """Add a subscriber."""
        subscriber = TrafficSubscriber(asyncio.Queue(MAX_QUEUED_REQUESTS), has_contents, [0])
        self._subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: TrafficSubscriber) -> None:
        """Remove a subscriber."""
        self._subscribers = [each for each in self._subscribers if each is not subscriber]


# ---------------------------------------------------------------- one request
def describe_request(request: Any) -> dict[str, Any]:
    """Kind, parameters and input shape of a request, without contents."""
    body: dict[str, Any] = {}
    sampling = getattr(request, "sampling", None)
    if isinstance(sampling, Sampling):
        defaults = _DEFAULT_SAMPLING
        named = {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
        body |= {name: value for name, value in named.items() if value != getattr(defaults, name)}
        body["max_tokens"] = sampling.max_tokens
    match request:
        case SpeechRequest():
            body |= {"voice": request.voice, "speed": request.speed, "seed": request.seed}
        case ImageRequest():
            body |= {name: value for name in _IMAGE_FIELDS if (value := getattr(request, name))}
            if request.width:
                body["size"] = f"{request.width}x{request.height}"
        case TranscriptionRequest():
            body |= {"language": request.language, "temperature": request.temperature}
        case _:
            pass
    body = {name: value for name, value in body.items() if value != ""}
    name: str = type(request).__name__
    kind = next((kind for each, kind in _KINDS.items() if isinstance(request, each)), name)
    return {"kind": kind, "body": body, "input": _input_shape(request)}


def _input_shape(request: Any) -> dict[str, Any]:
    """Sizes of the inputs: characters of text, seconds of audio, numbers of messages, images and texts."""
    shape: dict[str, Any] = {"characters": len(_text_of(request))}
    parts: list[Any] = []
    if isinstance(request, ChatRequest):
        shape["messages"] = len(request.messages)
        parts = [part for message in request.messages for part in message.parts]
    elif isinstance(request, EmbeddingRequest):
        shape["texts"] = len(request.texts)
    elif isinstance(request, TranscriptionRequest):
        parts = [request.audio]
    elif isinstance(request, ImageRequest):
        parts = list(request.sources)
    if audio := [part for part in parts if isinstance(part, AudioInput)]:
        shape["audio_s"] = round(sum(len(part.samples) / part.rate for part in audio), 3)
    if images := [part for part in parts if isinstance(part, ImageInput | VideoInput)]:
        shape["images"] = len(images)
    return shape


def _text_of(request: Any) -> str:
    """The text that a request has."""
    match request:
        case ChatRequest():
            return "\n".join(part for message in request.messages for part in message.parts if isinstance(part, str))
        case SpeechRequest():
            return request.text
        case ImageRequest():
            return request.prompt
        case EmbeddingRequest():
            return "\n".join(request.texts)
        case _:
            return ""


def add_result(record: RequestRecord, result: Any) -> None:
    """Note the prompt tokens that the model has counted."""
    if record.shape is not None and isinstance(result, Finish) and result.prompt_tokens:
        shape = record.shape["input"]
        shape["tokens"] = shape.get("tokens", 0) + sum(result.prompt_tokens.values())


def _describe_end(record: RequestRecord) -> dict[str, Any]:
    """The line of a trace file for a request that has ended. `at` is Unix time."""
    assert record.shape is not None, "it has begun"
    output: dict[str, float] = {kind.lower(): times.count for kind, times in record.deliveries.items()}
    output |= {
        f"{kind.lower()}_s": round(times.seconds, 3)
        for kind, times in record.deliveries.items()
        if kind in ("Audio", "Video") and times.seconds
    }
    first = [times.first[0] for times in record.deliveries.values() if times.first]
    return record.shape | {
        "at": record.started_at + record.wall_clock_offset,
        "model": record.model,
        "endpoint": record.context.endpoint,
        "slo": format_slo(record.context.slo),
        "status": record.context.status,
        "seconds": round(record.seconds, 6),
        "ttft_s": round(min(first) - record.started_at, 6) if first else None,
        "output": output,
    }


def format_slo(slo: Slo) -> str:
    """An SLO as the value of the header `Mstar-SLO`; empty for none."""
    parts = ["best_effort"] if slo.best_effort else [] if slo.ttft_s is None else [f"ttft={slo.ttft_s:.4f}"]
    parts += [f"tokens_per_second={slo.tokens_per_s:.4f}"] if slo.tokens_per_s else []
    return ",".join(parts)
