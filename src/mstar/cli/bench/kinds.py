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

from mstar.cli.bench import texts
from mstar.cli.bench.readers import Events, Failed, Reader, Sound, Whole
from mstar.cli.bench.records import Slo
from mstar.cli.conformance import samples

TOKENS = (16, 48, 128)
"""How long an answer of a chat may be, for short, medium and long ones."""
HEARD_S = (2.0, 5.0, 12.0)
"""How long the sound is that is to be written down."""
_BOUNDARY = "mstar-bench-7f1c"


class Asked(NamedTuple):
    """The body of a request."""

    body: bytes
    content_type: str = "application/json"
    heard_s: float = 0.0


class Kind(ABC):
    """A kind of request."""

    path: ClassVar[str]
    slo: ClassVar[Slo]
    """What its clients want, unless they say otherwise."""

    @abstractmethod
    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:
        """What is sent. Wishes are fields of the body, and win."""

    def reader(self, headers: Mapping[str, str]) -> Reader:
        """Who reads the answer: by what the server says that it sends."""
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        return Events(self.count) if is_stream else Whole(self.count)

    @abstractmethod
    def count(self, content: Mapping[str, Any]) -> float:
        """How much an event or an answer in JSON brings."""


class Chat(Kind):
    """A question, answered in a stream of text."""

    path = "/v1/chat/completions"
    slo = Slo(first=1.0, itl=0.2)

    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:
        """An answer of some length is wanted."""
        said = {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS[texts.size(rng)]}
        how = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        return _json({"model": model} | said | how | dict(wishes))

    def count(self, content: Mapping[str, Any]) -> float:
        """1 if there is text in it."""
        deltas = [choice.get("delta") or choice.get("message") or {} for choice in content.get("choices") or ()]
        return float(any(one.get("content") or one.get("reasoning_content") for one in deltas))


class Speech(Kind):
    """A text that is to be said."""

    path = "/v1/audio/speech"
    slo = Slo(first=1.0, continuity=0.1)

    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:
        """With a seed, so that two runs ask for the same."""
        body = {"model": model, "input": text, "response_format": "pcm", "seed": rng.getrandbits(30)}
        return _json(body | dict(wishes))

    def reader(self, headers: Mapping[str, str]) -> Reader:
        """Sound, unless the server has put something else into JSON."""
        is_told = headers.get("content-type", "").startswith("application/json")
        return super().reader(headers) if is_told else Sound(headers)

    def count(self, content: Mapping[str, Any]) -> float:
        """There is no sound in JSON."""
        raise Failed(f"{str(content)[:80]} is no sound")


class Transcriptions(Kind):
    """Sound that is to be written down: a tone, which is work enough."""

    path = "/v1/audio/transcriptions"
    slo = Slo(whole=5.0)

    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:  # noqa: ARG002 - it hears
        """A form with a file of some length."""
        seconds = HEARD_S[texts.size(rng)]
        fields = {"model": model, "stream": "true"} | {name: str(value) for name, value in wishes.items()}
        parts = [f'; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        parts.append(b'; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + _files()[seconds])
        mark = f"--{_BOUNDARY}".encode()
        form = b"".join(mark + b"\r\nContent-Disposition: form-data" + part + b"\r\n" for part in parts)
        return Asked(form + mark + b"--\r\n", f"multipart/form-data; boundary={_BOUNDARY}", seconds)

    def count(self, content: Mapping[str, Any]) -> float:
        """1 for each piece of text, or for the whole: nothing at all is an answer too, to a tone."""
        return float("text" in content or "delta" in content or "choices" in content)


class Images(Kind):
    """A picture. With the wishes `stream` and `partial_images`, sharper and sharper ones."""

    path = "/v1/images/generations"
    slo = Slo(whole=10.0)

    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:
        """One picture."""
        body = {"model": model, "prompt": text, "response_format": "b64_json", "seed": rng.getrandbits(30)}
        return _json(body | dict(wishes))

    def count(self, content: Mapping[str, Any]) -> float:
        """How many pictures there are in it."""
        return float(len(content.get("data") or ())) if "data" in content else float("b64_json" in content)


class Embeddings(Kind):
    """Texts as vectors."""

    path = "/v1/embeddings"
    slo = Slo(whole=1.0)

    def ask(self, text: str, rng: Random, model: str, wishes: Mapping[str, Any]) -> Asked:  # noqa: ARG002 - alike
        """One text."""
        return _json({"model": model, "input": text} | dict(wishes))

    def count(self, content: Mapping[str, Any]) -> float:
        """How many vectors there are."""
        return float(len(content.get("data") or ()))


def _json(body: Mapping[str, Any]) -> Asked:
    return Asked(json.dumps(body).encode())


@cache
def _files() -> dict[float, bytes]:
    """All at once, so that none is made while others wait."""
    return {seconds: samples.wav(seconds) for seconds in HEARD_S}


KINDS: dict[str, Kind] = {
    "chat": Chat(),
    "speech": Speech(),
    "transcriptions": Transcriptions(),
    "images": Images(),
    "embeddings": Embeddings(),
}
"""By the names that an operator writes."""
