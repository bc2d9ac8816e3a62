"""Answers as they are read: bytes of the server become pieces for the caller, and in the end a result.

A reader reads one answer from its beginning. When one is asked for again, another reads it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from mstar.client.arrays import pack, unpack
from mstar.client.errors import to_api_error
from mstar.client.responses import (
    Audio,
    ChatResponse,
    Emission,
    GenerateResponse,
    SpeechResponse,
    Text,
    ToolCall,
    TranscriptionResponse,
)
from mstar.client.retry import Chunk, ResponseHead
from mstar.client.stream_parsing import FrameParser, SseParser, decode_json

R = TypeVar("R")


def _raise_on_error(content: Any, head: ResponseHead) -> Any:
    """An event, unless it says what went wrong."""
    if "error" in content:
        status = 500 if content["error"].get("type") == "server_error" else 400
        raise to_api_error(status, content, head.headers.get("x-request-id", ""), {})
    return content


def _text_chunk(text: str) -> Chunk[Text]:
    return Chunk("text", text.encode(), lambda fresh: Text(fresh.decode()))


def _audio_chunk(coded: str) -> Chunk[Audio]:
    return Chunk("audio", b64decode(coded), Audio)


class BodyReader(Generic[R]):
    """An answer that is nothing before its end. `made` says what it is then."""

    def __init__(self, head: ResponseHead, convert: Callable[[Any], R]) -> None:
        self.result: R | None = None
        self._data = bytearray()
        self._convert = convert
        self._decode = unpack if "msgpack" in head.headers.get("content-type", "") else decode_json

    def feed(self, data: bytes) -> Iterator[Chunk[Any]]:
        """Read on."""
        self._data += data
        yield from ()

    def finish(self) -> None:
        """Now it is something."""
        self.result = self._convert(self._decode(bytes(self._data)))


class _SseReader:
    """An answer in events."""

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._events = SseParser()
        self._parts: dict[type, list[Any]] = {Text: [], Audio: []}

    def _contents(self, data: bytes) -> Iterator[Any]:
        for event in self._events.feed(data):
            yield None if event == b"[DONE]" else _raise_on_error(decode_json(event), self._head)

    def _on_text(self, text: str) -> Iterator[Chunk[Text]]:
        if text:
            self._parts[Text].append(text)
            yield _text_chunk(text)

    def _on_audio(self, coded: str) -> Iterator[Chunk[Audio]]:
        if coded:
            piece = _audio_chunk(coded)
            self._parts[Audio].append(piece.content)
            yield piece

    def finish(self) -> None:
        """An end that no event told of is none."""


class ChatReader(_SseReader):
    """An answer of a chat."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: ChatResponse | None = None
        self._calls: list[ToolCall] = []
        self._reason = ""
        self._usage: dict[str, Any] = {}

    def feed(self, data: bytes) -> Iterator[Chunk[Text | Audio]]:
        """Read on."""
        for content in self._contents(data):
            if content is None:
                text, audio = "".join(self._parts[Text]), b"".join(self._parts[Audio])
                self.result = ChatResponse(text, audio, tuple(self._calls), self._reason, self._usage)
                return
            self._usage = content.get("usage") or self._usage
            for choice in content["choices"]:
                yield from self._delta(choice["delta"])
                self._reason = choice.get("finish_reason") or self._reason

    def _delta(self, delta: dict[str, Any]) -> Iterator[Chunk[Text | Audio]]:
        audio: dict[str, Any] = delta.get("audio") or {}
        yield from self._on_text((delta.get("content") or "") + audio.get("transcript", ""))
        yield from self._on_audio(audio.get("data", ""))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            self._calls.append(ToolCall(call["id"], function["name"], function["arguments"]))


class SpeechReader(_SseReader):
    """A text that is said."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: SpeechResponse | None = None

    def feed(self, data: bytes) -> Iterator[Chunk[Audio]]:
        """Read on."""
        for content in self._contents(data):
            if content["type"] == "speech.audio.delta":
                yield from self._on_audio(content["audio"])
            elif content["type"] == "speech.audio.done":
                rate = int(self._head.headers.get("x-sample-rate", "0"))
                self.result = SpeechResponse(b"".join(self._parts[Audio]), rate, content.get("usage") or {})


class TranscriptionReader(_SseReader):
    """What is said in a file."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: TranscriptionResponse | None = None

    def feed(self, data: bytes) -> Iterator[Chunk[Text]]:
        """Read on."""
        for content in self._contents(data):
            if content["type"] == "transcript.text.delta":
                yield from self._on_text(content["delta"])
            elif content["type"] == "transcript.text.done":
                self.result = TranscriptionResponse(content["text"], content.get("usage") or {})


class EmissionReader:
    """A model's emissions in its own terms, and what its route gave."""

    def __init__(self, head: ResponseHead) -> None:
        self.result: GenerateResponse | None = None
        self._head = head
        self._frames = FrameParser()

    def feed(self, data: bytes) -> Iterator[Chunk[Emission]]:
        """Read on."""
        for content in self._frames.feed(data):
            if "result" in _raise_on_error(content, self._head):
                self.result = GenerateResponse(content["result"])
                return
            kind, index, value = (content.pop(name) for name in ("kind", "index", "value"))
            emission = Emission(kind, index, value, content)
            digest = blake2b(pack([index, value, content]), digest_size=16).digest()
            yield Chunk(kind, digest, lambda _, emission=emission: emission)

    def finish(self) -> None:
        """An end that no frame told of is none."""
