"""Backends of `mstar run`: a model loaded in this process, or a running server. Both yield the same events.

The local backend serves the model like `mstar serve --in-process`, so outputs stream while the rest is computed.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mstar.cli.checkpoints.target import resolve_target, target_name
from mstar.cli.output import JsonValue, OutputEvent, PcmChunk, PngImage
from mstar.errors import LoadError, format_names, suggest_name
from mstar.requests import (
    AudioInput,
    ChatRequest,
    EmbeddingRequest,
    ImageInput,
    ImageRequest,
    Message,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
)
from mstar.walk.model import Model

if TYPE_CHECKING:
    from mstar.client import Client

AUDIO_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
DRAIN_TIMEOUT_S = 30.0
"""Seconds to wait for running requests at exit. An interrupted run does not wait."""
SAMPLE_RATE = 24_000
"""Samples per second of the audio that a server sends."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """An audio or image file passed on the command line."""

    path: Path
    data: bytes

    @property
    def is_audio(self) -> bool:
        """Whether its suffix is one of an audio format. Otherwise it is an image."""
        return self.path.suffix.lower() in AUDIO_SUFFIXES


InputPart = str | InputFile


@dataclass(frozen=True, slots=True)
class RunParams:
    """Request parameters from the command line."""

    max_tokens: int
    temperature: float | None
    """None: the default of the model."""
    seed: int
    voice: str
    audio_output: bool


class LocalBackend:
    """A model loaded in this process."""

    def __init__(self, target: str) -> None:
        from mstar.launch.in_process import InProcessLauncher
        from mstar.plan.planned_model import load_planned_models
        from mstar.server.state import ServedModel

        name = target_name(target)
        planned = load_planned_models({name: resolve_target(target)}, {})
        self._served = ServedModel.from_model(name, planned[name].model)
        self._launcher = InProcessLauncher(planned)
        self.request_types = {
            kind.__name__.removesuffix("Request").lower()
            for kind in self._served.accepted_types
            if isinstance(kind, type)
        }

    def __enter__(self) -> Self:
        from mstar.frontend.actor import FrontendActor
        from mstar.wire.messages import Peer

        self._launcher.start(lambda line: print(line, file=sys.stderr, flush=True))
        self._frontend = FrontendActor(self._launcher.actor_loop, Peer("front", 0), self._launcher.conductors)
        self._launcher.add_frontend(self._frontend)
        return self

    def __exit__(self, *exception: object) -> None:
        self._launcher.stop(0.0 if exception[0] else DRAIN_TIMEOUT_S)

    def chat(self, parts: Sequence[InputPart], params: RunParams) -> Iterator[OutputEvent]:
        """Stream the response to one user message."""
        sampling = self._served.sampling(max_tokens=params.max_tokens, temperature=params.temperature, seed=params.seed)
        message = Message("user", tuple(part if isinstance(part, str) else decode_file(part) for part in parts))
        return self._events(ChatRequest((message,), sampling, audio_output=params.audio_output, voice=params.voice))

    def speak(self, text: str, params: RunParams) -> Iterator[OutputEvent]:
        """Stream the audio of a text."""
        return self._events(SpeechRequest(text, params.voice, seed=params.seed))

    def draw(self, prompt: str, params: RunParams) -> Iterator[OutputEvent]:
        """Generate an image."""
        return self._events(ImageRequest(prompt, seed=params.seed))

    def transcribe(self, audio: InputFile) -> Iterator[OutputEvent]:
        """Stream the transcript of an audio file."""
        return self._events(TranscriptionRequest(decode_file(audio)))

    def embed(self, texts: Sequence[str]) -> Iterator[OutputEvent]:
        """Yield the vectors of texts."""
        stream = self._frontend.open_stream(self._served.name, EmbeddingRequest(tuple(texts)))
        for _ in stream:
            pass
        vectors = stream.result[0] if isinstance(stream.result, tuple) else stream.result
        yield JsonValue({"embeddings": vectors.tolist()})

    def generate(self, request: Any) -> Iterator[OutputEvent]:
        """Send a request of the model's own type, given as decoded JSON."""
        from mstar.server.errors import ApiError
        from mstar.server.generic.request_parsing import parse_request

        try:
            parsed = parse_request(self._served, request)
        except ApiError as error:
            raise LoadError(f"--json: {error.message}\n  fix: pass the fields that the model's route accepts") from None
        return self._events(parsed)

    def _events(self, request: Any) -> Iterator[OutputEvent]:
        from mstar.server.arrays import to_base64, to_plain
        from mstar.server.openai.detokenizer import IncrementalDetokenizer

        model, has_text = self._served.model, False
        detokenizer = IncrementalDetokenizer(model.detokenize)
        has_detokenizer = type(model).detokenize is not Model.detokenize
        stream = self._frontend.open_stream(self._served.name, request)
        for emission in stream:
            kind = type(emission).__name__
            if kind == "Text" and (has_detokenizer or isinstance(emission.value, str)):
                has_text = True
                yield detokenizer.add(emission.value)
            elif kind in _MEDIA_CONVERTERS:
                yield _MEDIA_CONVERTERS[kind](emission)
            elif kind != "WordTimestamps":  # for programs, not for a terminal
                yield JsonValue({"kind": kind, "value": to_plain(emission.value, to_base64), **dict(emission.clock)})
        yield detokenizer.finish()
        if isinstance(stream.result, Transcript):
            yield "" if has_text else stream.result.text
        elif stream.result is not None and not isinstance(request, ChatRequest | SpeechRequest | ImageRequest):
            yield JsonValue({"result": to_plain(stream.result, to_base64)})


def _to_pcm_chunk(emission: Any) -> PcmChunk:
    from mstar.media.audio import PcmEncoder as Encoder
    from mstar.media.audio import to_samples

    return PcmChunk(Encoder().feed(to_samples(emission.value)), emission.rate)


def _to_png_image(emission: Any) -> PngImage:
    from mstar.media.images import encode_image

    return PngImage(encode_image(emission.value, "png", 100)[0])


_MEDIA_CONVERTERS = {"Audio": _to_pcm_chunk, "Image": _to_png_image}


def decode_file(file: InputFile) -> Any:
    """Decode a file in the sandboxed decoder process, as the server does."""
    from mstar.media.decoder_pool import DecoderPool

    async def decode() -> AudioInput | ImageInput:
        decoders = DecoderPool(1)
        try:
            return await (decoders.decode_audio(file.data) if file.is_audio else decoders.decode_image(file.data))
        finally:
            decoders.close()

    return asyncio.run(decode())


class RemoteBackend:
    """A model on a running server."""

    def __init__(self, client: Client, model: str) -> None:
        served = {info.id: info.capabilities for info in client.models()}
        if model not in served:
            problem = f"the server has no model `{model}`{suggest_name(model, served)}"
            raise LoadError(f"{problem}\n  fix: use one of {format_names(served)}")
        self.request_types = served[model]
        self._client = client
        self._model = model

    def chat(self, parts: Sequence[InputPart], params: RunParams) -> Iterator[OutputEvent]:
        """Stream the response to one user message."""
        options: dict[str, Any] = {"audio": _voice_params(params) | {"format": "pcm16"}} if params.audio_output else {}
        options |= {"max_tokens": params.max_tokens, "seed": params.seed}
        options |= {} if params.temperature is None else {"temperature": params.temperature}
        message = {"role": "user", "content": [_to_content_part(part) for part in parts]}
        return self._events(self._client.chat(self._model, [message], **options))

    def speak(self, text: str, params: RunParams) -> Iterator[OutputEvent]:
        """Stream the audio of a text."""
        options: dict[str, Any] = _voice_params(params) | {"response_format": "pcm", "seed": params.seed}
        return self._events(self._client.speech(self._model, text, **options))

    def draw(self, prompt: str, params: RunParams) -> Iterator[OutputEvent]:
        """Generate an image."""
        for emission in self._client.generate(self._model, {"prompt": prompt, "seed": params.seed}):
            if emission.kind == "Image":
                yield _to_png_image(emission)

    def transcribe(self, audio: InputFile) -> Iterator[OutputEvent]:
        """Stream the transcript of an audio file."""
        stream, text = self._client.transcribe(self._model, audio.data), ""
        for event in stream:
            text += event.text
            yield event.text
        yield "" if text else stream.result().text  # the model does not stream its transcript

    def embed(self, texts: Sequence[str]) -> Iterator[OutputEvent]:
        """Yield the vectors of texts."""
        yield JsonValue({"embeddings": self._client.embed(self._model, texts).tolist()})

    def generate(self, request: Any) -> Iterator[OutputEvent]:
        """Send a request of the model's own type, given as decoded JSON."""
        from mstar.server.arrays import to_base64, to_plain

        stream = self._client.generate(self._model, request)
        for emission in stream:
            yield JsonValue({"kind": emission.kind, "value": to_plain(emission.value, to_base64), **emission.clock})
        yield JsonValue({"result": to_plain(stream.result().result, to_base64)})

    def _events(self, stream: Any) -> Iterator[OutputEvent]:
        for event in stream:
            yield PcmChunk(event.data, SAMPLE_RATE) if hasattr(event, "data") else event.text


def _voice_params(params: RunParams) -> dict[str, str]:
    return {"voice": params.voice} if params.voice else {}  # the model has a default voice


def _to_content_part(part: InputPart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data, kind = base64.b64encode(part.data).decode(), part.path.suffix.lower().removeprefix(".")
    if part.is_audio:
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind.replace('jpg', 'jpeg')};base64,{data}"}}
