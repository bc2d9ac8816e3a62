"""Requests that a profile records: those of a JSON Lines file, or short, medium and long ones of each accepted kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from mstar.cli.bench import prompts
from mstar.cli.bench.request_kinds import AUDIO_INPUT_S, MAX_TOKENS, REQUEST_KINDS
from mstar.cli.conformance import samples
from mstar.errors import LoadError, format_names
from mstar.requests import (
    AudioInput,
    ChatRequest,
    EmbeddingRequest,
    ImageRequest,
    Message,
    SpeechRequest,
    TranscriptionRequest,
)
from mstar.server.state import ServedModel
from mstar.sim.profile.profile_recorder import ProfiledRequest

_KIND_BY_OUTPUT = {"Audio": "speech", "Image": "images", "Text": "chat"}
"""Kind of traffic that a request of a model's own type stands for, by its output."""
_FIELDS = {
    "chat": {"text", "max_tokens"},
    "speech": {"text"},
    "transcriptions": {"audio", "seconds"},
    "images": {"text"},
    "embeddings": {"text"},
}
"""Fields of a line of a file, by kind."""


def default_requests(served: ServedModel) -> list[ProfiledRequest]:
    """As many short, medium and long requests of each kind as `mstar bench serve` sends of ten."""
    rng, requests = Random(0), list[ProfiledRequest]()
    for kind, build in _builders(served).items():
        for size, weight in enumerate(prompts.SIZE_WEIGHTS):
            for _ in range(weight):
                text = " ".join(rng.choices(prompts.SENTENCES, k=rng.randint(*prompts.SENTENCE_COUNTS[size])))
                fields = {"text": text, "max_tokens": MAX_TOKENS[size], "seconds": AUDIO_INPUT_S[size]}
                requests.append(ProfiledRequest(kind, build(fields)))
    if not requests:
        kind = next((kind for output, kind in _KIND_BY_OUTPUT.items() if output in served.output_kinds), "embeddings")
        requests = [ProfiledRequest(kind, request) for request in served.model.warmup_requests()]
    if not requests:
        fix = "pass requests with --requests FILE, or define `warmup_requests` in the model"
        raise LoadError(f"{served.name} accepts no kind of request that can be generated\n  fix: {fix}")
    return requests


def read_requests(path: Path, served: ServedModel) -> list[ProfiledRequest]:
    """Requests of a file. Raises LoadError.

    Its lines are JSON such as {"kind": "chat", "text": "Hello", "max_tokens": 64}; a request of the model's own type is
    {"kind": "speech", "request": {...}}, as for /v1/generate.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: pass the path of a file") from error
    requests = [
        _parse_line(f"{path}:{number}", line, served, path.parent)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not requests:
        raise LoadError(f'{path}: there is no request\n  fix: write lines like {{"kind": "chat", "text": "Hello"}}')
    return requests


def _parse_line(location: str, line: str, served: ServedModel, folder: Path) -> ProfiledRequest:
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = fields.pop("kind")
    except (ValueError, LookupError, AttributeError, TypeError):
        problem = f"{location}: {line[:60]!r} is not a request"
        raise LoadError(f'{problem}\n  fix: write it as {{"kind": "chat", "text": "Hello"}}') from None
    if kind in REQUEST_KINDS and fields.keys() == {"request"}:
        return ProfiledRequest(kind, _parse_own(location, fields["request"], served))
    if kind not in (builders := _builders(served)):
        raise LoadError(f"{location}: the model does not accept {kind!r}\n  fix: use {format_names(builders)}")
    if unknown := fields.keys() - _FIELDS[kind]:
        problem = f"{location}: unknown field {format_names(sorted(unknown))}"
        raise LoadError(f"{problem}\n  fix: use {format_names(sorted(_FIELDS[kind]))}")
    if "audio" in fields:
        fields["audio"] = folder / fields["audio"]
    return ProfiledRequest(kind, builders[kind](fields))


def _parse_own(location: str, content: Any, served: ServedModel) -> Any:
    from mstar.server.errors import ApiError
    from mstar.server.generic.request_parsing import parse_request

    try:
        return parse_request(served, content)
    except ApiError as error:
        fix = "write the fields that the model's route accepts"
        raise LoadError(f"{location}: {error.message}\n  fix: {fix}") from None


def _builders(served: ServedModel) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Functions that build the request of each accepted kind from the fields of a line."""

    def chat(fields: Mapping[str, Any]) -> ChatRequest:
        sampling = served.sampling(max_tokens=int(fields.get("max_tokens", MAX_TOKENS[1])), temperature=0.0, seed=0)
        return ChatRequest((Message("user", (_text(fields),)),), sampling)

    builders = {
        "chat": (ChatRequest, chat),
        "speech": (SpeechRequest, lambda fields: SpeechRequest(_text(fields))),
        "transcriptions": (TranscriptionRequest, lambda fields: TranscriptionRequest(_audio(fields))),
        "images": (ImageRequest, lambda fields: ImageRequest(_text(fields))),
        "embeddings": (EmbeddingRequest, lambda fields: EmbeddingRequest((_text(fields),))),
    }
    return {kind: build for kind, (request_type, build) in builders.items() if request_type in served.accepted_types}


def _text(fields: Mapping[str, Any]) -> str:
    return str(fields.get("text", prompts.SENTENCES[0]))


def _audio(fields: Mapping[str, Any]) -> AudioInput:
    """Audio of a file, or a tone, decoded in the sandboxed process as the server does."""
    from mstar.media.decoder_pool import DecoderPool

    path = fields.get("audio")
    try:
        data = samples.wav(float(fields.get("seconds", AUDIO_INPUT_S[1]))) if path is None else Path(path).read_bytes()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: pass the path of an audio file") from error

    async def decode() -> AudioInput:
        decoders = DecoderPool(1)
        try:
            return await decoders.decode_audio(data)
        finally:
            decoders.close()

    return asyncio.run(decode())
