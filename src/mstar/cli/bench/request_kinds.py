"""The kinds of requests over HTTP: what each sends, and what counts in its answer. Robots, who call, are in `robots`.

All of it is what servers that are compatible with OpenAI's understand, and read.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any, ClassVar, NamedTuple

from mstar.cli.bench import prompts
from mstar.cli.bench.records import SloTarget
from mstar.cli.bench.response_readers import AudioReader, JsonReader, ResponseError, ResponseReader, SseReader
from mstar.cli.conformance import samples

MAX_TOKENS = (16, 48, 128)
"""How long an answer of a chat may be, for short, medium and long ones."""
AUDIO_INPUT_S = (2.0, 5.0, 12.0)
"""How long the sound is that is to be written down."""
_BOUNDARY = "mstar-bench-7f1c"


class RequestBody(NamedTuple):
    """The body of a request."""

    body: bytes
    content_type: str = "application/json"
    audio_input_s: float = 0.0


class RequestKind(ABC):
    """A kind of request."""

    path: ClassVar[str]
    slo: ClassVar[SloTarget]
    """What its clients want, unless they say otherwise."""

    @abstractmethod
    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """What is sent. Wishes are fields of the body, and win."""

    def reader(self, headers: Mapping[str, str]) -> ResponseReader:
        """Who reads the answer: by what the server says that it sends."""
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        return SseReader(self.count_outputs) if is_stream else JsonReader(self.count_outputs)

    @abstractmethod
    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """How much an event or an answer in JSON brings."""


class ChatKind(RequestKind):
    """A question, answered in a stream of text."""

    path = "/v1/chat/completions"
    slo = SloTarget(first=1.0, itl=0.2)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """An answer of some length is wanted."""
        said = {"messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS[prompts.sample_size(rng)]}
        how = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        return _json_body({"model": model} | said | how | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """1 if there is text in it."""
        deltas = [choice.get("delta") or choice.get("message") or {} for choice in content.get("choices") or ()]
        return float(any(one.get("content") or one.get("reasoning_content") for one in deltas))


class SpeechKind(RequestKind):
    """A text that is to be said."""

    path = "/v1/audio/speech"
    slo = SloTarget(first=1.0, continuity=0.1)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """With a seed, so that two runs ask for the same."""
        body = {"model": model, "input": text, "response_format": "pcm", "seed": rng.getrandbits(30)}
        return _json_body(body | dict(params))

    def reader(self, headers: Mapping[str, str]) -> ResponseReader:
        """Sound, unless the server has put something else into JSON."""
        is_told = headers.get("content-type", "").startswith("application/json")
        return super().reader(headers) if is_told else AudioReader(headers)

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """There is no sound in JSON."""
        raise ResponseError(f"{str(content)[:80]} is no sound")


class TranscriptionKind(RequestKind):
    """Sound that is to be written down: a tone, which is work enough."""

    path = "/v1/audio/transcriptions"
    slo = SloTarget(total=5.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:  # noqa: ARG002 - it hears
        """A form with a file of some length."""
        seconds = AUDIO_INPUT_S[prompts.sample_size(rng)]
        fields = {"model": model, "stream": "true"} | {name: str(value) for name, value in params.items()}
        parts = [f'; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        parts.append(
            b'; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + _make_audio_files()[seconds]
        )
        mark = f"--{_BOUNDARY}".encode()
        form = b"".join(mark + b"\r\nContent-Disposition: form-data" + part + b"\r\n" for part in parts)
        return RequestBody(form + mark + b"--\r\n", f"multipart/form-data; boundary={_BOUNDARY}", seconds)

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """1 for each piece of text, or for the whole: nothing at all is an answer too, to a tone."""
        return float("text" in content or "delta" in content or "choices" in content)


class ImageKind(RequestKind):
    """A picture. With the wishes `stream` and `partial_images`, sharper and sharper ones."""

    path = "/v1/images/generations"
    slo = SloTarget(total=10.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:
        """One picture."""
        body = {"model": model, "prompt": text, "response_format": "b64_json", "seed": rng.getrandbits(30)}
        return _json_body(body | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """How many pictures there are in it."""
        return float(len(content.get("data") or ())) if "data" in content else float("b64_json" in content)


class EmbeddingKind(RequestKind):
    """Texts as vectors."""

    path = "/v1/embeddings"
    slo = SloTarget(total=1.0)

    def make_request(self, text: str, rng: Random, model: str, params: Mapping[str, Any]) -> RequestBody:  # noqa: ARG002 - alike
        """One text."""
        return _json_body({"model": model, "input": text} | dict(params))

    def count_outputs(self, content: Mapping[str, Any]) -> float:
        """How many vectors there are."""
        return float(len(content.get("data") or ()))


def _json_body(body: Mapping[str, Any]) -> RequestBody:
    return RequestBody(json.dumps(body).encode())


@cache
def _make_audio_files() -> dict[float, bytes]:
    """All at once, so that none is made while others wait."""
    return {seconds: samples.wav(seconds) for seconds in AUDIO_INPUT_S}


REQUEST_KINDS: dict[str, RequestKind] = {
    "chat": ChatKind(),
    "speech": SpeechKind(),
    "transcriptions": TranscriptionKind(),
    "images": ImageKind(),
    "embeddings": EmbeddingKind(),
}
"""By the names that an operator writes."""
