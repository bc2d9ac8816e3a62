"""HTTP request kinds of a load test: request body, default SLO and how to count outputs. Robots are in `robot_client`.

All kinds use the OpenAI protocol.
"""

from __future__ import annotations

import io
import json
import wave
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, lru_cache
from math import ceil
from random import Random
from typing import Any, ClassVar, NamedTuple

from mstar.cli.bench import prompts
from mstar.cli.bench.records import SloTarget
from mstar.cli.bench.response_readers import AudioReader, JsonReader, ResponseError, ResponseReader, SseReader
from mstar.cli.conformance import samples

MAX_TOKENS = (16, 48, 128)
"""`max_tokens` of short, medium and long chat responses."""
AUDIO_SECONDS = "audio_s"
"""Parameter of a transcription that is not sent: the duration of its audio."""
AUDIO_INPUT_S = (2.0, 5.0, 12.0)
"""Seconds of audio in short, medium and long transcription requests."""
_BOUNDARY = "mstar-bench-7f1c"


class RequestBody(NamedTuple):
    """Encoded body of a request."""

    body: bytes
    content_type: str = "application/json"
    audio_input_s: float = 0.0


class RequestKind(ABC):
    """A kind of request: how to build its body and read its response."""

    path: ClassVar[str]
    slo: ClassVar[SloTarget]
    """Default SLO."""

    @abstractmethod
    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """Build a body. `params` are fields of the body and take precedence."""

    def reader(self, headers: Mapping[str, str]) -> ResponseReader:
        """Choose a reader by the content type of the response."""
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        return SseReader(self.count_outputs) if is_stream else JsonReader(self.count_outputs)

    @abstractmethod
    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """Number of outputs in one event, or in a whole JSON response."""


class ChatKind(RequestKind):
    """A chat completion, streamed."""

    path = "/v1/chat/completions"
    slo = SloTarget(ttft=1.0, itl=0.2)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """A prompt with random `max_tokens`."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS[prompts.sample_size(rng)]}
        options = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        return _json_body({"model": model} | body | options | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """1 if the event has text."""
        deltas = [choice.get("delta") or choice.get("message") or {} for choice in content.get("choices") or ()]
        return float(any(delta.get("content") or delta.get("reasoning_content") for delta in deltas))


class SpeechKind(RequestKind):
    """Text-to-speech as PCM audio."""

    path = "/v1/audio/speech"
    slo = SloTarget(ttft=1.0, continuity=0.1)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """With a seed, so that two runs produce the same audio."""
        body = {"model": model, "input": text, "response_format": "pcm", "seed": rng.getrandbits(30)}
        return _json_body(body | dict(params))

    def reader(self, headers: Mapping[str, str]) -> ResponseReader:
        """Audio, unless the server responds with JSON."""
        is_json = headers.get("content-type", "").startswith("application/json")
        return super().reader(headers) if is_json else AudioReader(headers)

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """Always an error: JSON contains no audio."""
        raise ResponseError(f"{str(content)[:80]} is not audio")


class TranscriptionKind(RequestKind):
    """Transcription of a tone, which costs a model as much as speech."""

    path = "/v1/audio/transcriptions"
    slo = SloTarget(total=5.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:  # noqa: ARG002 - audio replaces the text
        """A multipart form with an audio file of random length."""
        seconds = float(params.get(AUDIO_SECONDS) or AUDIO_INPUT_S[prompts.sample_size(rng)])
        named = {name: str(value) for name, value in params.items() if name != AUDIO_SECONDS}
        fields = {"model": model, "stream": "true"} | named
        parts = [f'; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        parts.append(
            b'; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + _make_audio_file(round(seconds, 1))
        )
        mark = f"--{_BOUNDARY}".encode()
        form = b"".join(mark + b"\r\nContent-Disposition: form-data" + part + b"\r\n" for part in parts)
        return RequestBody(form + mark + b"--\r\n", f"multipart/form-data; boundary={_BOUNDARY}", seconds)

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """1 per text event, even with empty text: the correct transcript of a tone."""
        return float("text" in content or "delta" in content or "choices" in content)


class ImageKind(RequestKind):
    """Image generation. The params `stream` and `partial_images` request partial images."""

    path = "/v1/images/generations"
    slo = SloTarget(total=10.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """One image with a random seed."""
        body = {"model": model, "prompt": text, "response_format": "b64_json", "seed": rng.getrandbits(30)}
        return _json_body(body | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """Number of images in a response or event."""
        return float(len(content.get("data") or ())) if "data" in content else float("b64_json" in content)


class EmbeddingKind(RequestKind):
    """Text embeddings."""

    path = "/v1/embeddings"
    slo = SloTarget(total=1.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:  # noqa: ARG002 - no randomness
        """One text per request."""
        return _json_body({"model": model, "input": text} | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """Number of embeddings."""
        return float(len(content.get("data") or ()))


def _json_body(body: Mapping[str, Any]) -> RequestBody:
    return RequestBody(json.dumps(body).encode())


@lru_cache(maxsize=64)
def _make_audio_file(seconds: float) -> bytes:
    """A WAV file of this duration. It repeats a second of a tone, because making one takes longer than a request."""
    pcm = _make_second() * ceil(seconds)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(samples.RATE)
        writer.writeframes(pcm[: 2 * round(seconds * samples.RATE)])
    return file.getvalue()


@cache
def _make_second() -> bytes:
    return samples.tone(1.0)


REQUEST_KINDS: dict[str, RequestKind] = {
    "chat": ChatKind(),
    "speech": SpeechKind(),
    "transcriptions": TranscriptionKind(),
    "images": ImageKind(),
    "embeddings": EmbeddingKind(),
}
"""Request kinds by the names used in flags and files."""
