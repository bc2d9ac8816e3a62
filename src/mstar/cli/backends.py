"""Two ways to a model for `mstar run`: everything in this process, or a running server. Both give the same events.

In this process it is served as `mstar serve --in-process` would serve it, so a stream begins while the rest is being
made.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mstar.cli.output import JsonValue, OutputEvent, PcmChunk, PngImage
from mstar.errors import LoadError, format_names, suggest_name
from mstar.requests import (
    AudioInput,
    ChatRequest,
    ImageInput,
    Message,
    Sampling,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
)
from mstar.walk.load import default_model_name
from mstar.walk.model import Model

if TYPE_CHECKING:
    from mstar.client import Client

AUDIO_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
DRAIN_TIMEOUT_S = 30.0
"""How long what is under way may take at the end; who wants no more does not wait."""
SAMPLE_RATE = 24_000
"""At how many samples a second a server sends sound."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the user's."""

    path: Path
    data: bytes

    @property
    def is_audio(self) -> bool:
        """Whether its name is that of a sound; else it is that of a picture."""
        return self.path.suffix.lower() in AUDIO_SUFFIXES


InputPart = str | InputFile


@dataclass(frozen=True, slots=True)
class RunParams:
    """How an answer is wanted."""

    max_tokens: int
    temperature: float
    seed: int
    voice: str
    audio_output: bool


class LocalBackend:
    """A model in this process."""

    def __init__(self, target: str) -> None:
        from mstar.launch.in_process import InProcessLauncher
        from mstar.plan.planned_model import load_planned_models
        from mstar.server.state import ServedModel

        name = default_model_name(target)
        deployed = load_planned_models({name: target}, {})
        self._served = ServedModel.from_model(name, deployed[name].model)
        self._launcher = InProcessLauncher(deployed)
        self.request_types = {
            one.__name__.removesuffix("Request").lower() for one in self._served.accepted_types if isinstance(one, type)
        }

    def __enter__(self) -> Self:
        from mstar.frontend.actor import FrontendActor
        from mstar.wire.messages import Peer

        self._launcher.start()
        self._frontend = FrontendActor(self._launcher.actor_loop, Peer("front", 0), self._launcher.conductors)
        self._launcher.add_frontend(self._frontend)
        return self

    def __exit__(self, *exception: object) -> None:
        self._launcher.stop(0.0 if exception[0] else DRAIN_TIMEOUT_S)

    def chat(self, parts: Sequence[InputPart], params: RunParams) -> Iterator[OutputEvent]:
        """Answer."""
        sampling = Sampling(max_tokens=params.max_tokens, temperature=params.temperature, seed=params.seed)
        turn = Message("user", tuple(part if isinstance(part, str) else _decode_file(part) for part in parts))
        return self._events(ChatRequest((turn,), sampling, audio_output=params.audio_output, voice=params.voice))

    def speak(self, text: str, params: RunParams) -> Iterator[OutputEvent]:
        """Say a text."""
        return self._events(SpeechRequest(text, params.voice, seed=params.seed))

    def transcribe(self, sound: InputFile) -> Iterator[OutputEvent]:
        """Write down what is said."""
        return self._events(TranscriptionRequest(_decode_file(sound)))

    def generate(self, request: Any) -> Iterator[OutputEvent]:
        """Ask in the model's own terms."""
        from mstar.server.errors import ApiError
        from mstar.server.generic.request_parsing import parse_request

        try:
            ask = parse_request(self._served, request)
        except ApiError as refusal:
            raise LoadError(f"--json: {refusal.message}\n  fix: write what the model's route takes") from None
        return self._events(ask)

    def _events(self, request: Any) -> Iterator[OutputEvent]:
        from mstar.server.arrays import to_base64, to_plain
        from mstar.server.openai.detokenizer import IncrementalDetokenizer

        model, has_words = self._served.model, False
        spelling = IncrementalDetokenizer(model.detokenize)
        is_spelled = type(model).detokenize is not Model.detokenize
        stream = self._frontend.open_stream(self._served.name, request)
        for emission in stream:
            kind = type(emission).__name__
            if kind == "Text" and (is_spelled or isinstance(emission.value, str)):
                has_words = True
                yield spelling.add(emission.value)
            elif kind in _MEDIA_CONVERTERS:
                yield _MEDIA_CONVERTERS[kind](emission)
            else:
                yield JsonValue({"kind": kind, "value": to_plain(emission.value, to_base64), **dict(emission.clock)})
        yield spelling.finish()
        if isinstance(stream.result, Transcript):
            yield "" if has_words else stream.result.text
        elif stream.result is not None and not isinstance(request, ChatRequest | SpeechRequest):
            yield JsonValue({"result": to_plain(stream.result, to_base64)})


def _to_pcm_chunk(emission: Any) -> PcmChunk:
    from mstar.media.audio import PcmEncoder as Encoder
    from mstar.media.audio import to_samples

    return PcmChunk(Encoder().feed(to_samples(emission.value)), emission.rate)


def _to_png_image(emission: Any) -> PngImage:
    from mstar.media.images import encode_image

    return PngImage(encode_image(emission.value, "png", 100)[0])


_MEDIA_CONVERTERS = {"Audio": _to_pcm_chunk, "Image": _to_png_image}


def _decode_file(file: InputFile) -> Any:
    """A file as models take it, decoded as a server would."""
    from mstar.media.decoder_pool import DecoderPool

    async def decode() -> AudioInput | ImageInput:
        decoders = DecoderPool(1)
        try:
            return await (decoders.decode_audio(file.data) if file.is_audio else decoders.decode_image(file.data))
        finally:
            decoders.close()

    return asyncio.run(decode())


class RemoteBackend:
    """A model of a running server."""

    def __init__(self, client: Client, model: str) -> None:
        served = {one.id: one.capabilities for one in client.models()}
        if model not in served:
            what = f"the server has no model `{model}`{suggest_name(model, served)}"
            raise LoadError(f"{what}\n  fix: one of {format_names(served)}")
        self.request_types = served[model]
        self._client = client
        self._model = model

    def chat(self, parts: Sequence[InputPart], params: RunParams) -> Iterator[OutputEvent]:
        """Answer."""
        wishes: dict[str, Any] = {"audio": _voice_params(params) | {"format": "pcm16"}} if params.audio_output else {}
        wishes |= {"max_tokens": params.max_tokens, "temperature": params.temperature, "seed": params.seed}
        message = {"role": "user", "content": [_to_content_part(part) for part in parts]}
        return self._events(self._client.chat(self._model, [message], **wishes))

    def speak(self, text: str, params: RunParams) -> Iterator[OutputEvent]:
        """Say a text."""
        wishes: dict[str, Any] = _voice_params(params) | {"response_format": "pcm", "seed": params.seed}
        return self._events(self._client.speech(self._model, text, **wishes))

    def transcribe(self, sound: InputFile) -> Iterator[OutputEvent]:
        """Write down what is said."""
        stream, words = self._client.transcribe(self._model, sound.data), ""
        for event in stream:
            words += event.text
            yield event.text
        yield "" if words else stream.result().text  # of a model that tells it only as a whole

    def generate(self, request: Any) -> Iterator[OutputEvent]:
        """Ask in the model's own terms."""
        from mstar.server.arrays import to_base64, to_plain

        stream = self._client.generate(self._model, request)
        for emission in stream:
            yield JsonValue({"kind": emission.kind, "value": to_plain(emission.value, to_base64), **emission.clock})
        yield JsonValue({"result": to_plain(stream.result().result, to_base64)})

    def _events(self, stream: Any) -> Iterator[OutputEvent]:
        for event in stream:
            yield PcmChunk(event.data, SAMPLE_RATE) if hasattr(event, "data") else event.text


def _voice_params(params: RunParams) -> dict[str, str]:
    return {"voice": params.voice} if params.voice else {}  # else the model chooses


def _to_content_part(part: InputPart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data, kind = base64.b64encode(part.data).decode(), part.path.suffix.lower().removeprefix(".")
    if part.is_audio:
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind.replace('jpg', 'jpeg')};base64,{data}"}}
