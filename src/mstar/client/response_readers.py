"""Response readers: turn the bytes of one response into chunks for the caller and a result at the end.

A reader reads one response from its start. A retry uses a new reader.
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
    """Return an event, or raise the error that it contains."""
    if "error" in content:
        status = 500 if content["error"].get("type") == "server_error" else 400
        raise to_api_error(status, content, head.headers.get("x-request-id", ""), {})
    return content


def _text_chunk(text: str) -> Chunk[Text]:
    return Chunk("text", text.encode(), lambda new: Text(new.decode()))


def _audio_chunk(encoded: str) -> Chunk[Audio]:
    return Chunk("audio", b64decode(encoded), Audio)


class BodyReader(Generic[R]):
    """A response that is not streamed. `convert` turns the decoded body into the result."""

    def __init__(self, head: ResponseHead, convert: Callable[[Any], R]) -> None:
        self.result: R | None = None
        self._data = bytearray()
        self._convert = convert
        self._decode = unpack if "msgpack" in head.headers.get("content-type", "") else decode_json

    def feed(self, data: bytes) -> Iterator[Chunk[Any]]:
        """Feed bytes; yields new chunks."""
        self._data += data
        yield from ()

    def finish(self) -> None:
        """Convert the complete body."""
        self.result = self._convert(self._decode(bytes(self._data)))


class _SseReader:
    """Base of readers of server-sent events."""

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

    def _on_audio(self, encoded: str) -> Iterator[Chunk[Audio]]:
        if encoded:
            chunk = _audio_chunk(encoded)
            self._parts[Audio].append(chunk.content)
            yield chunk

    def finish(self) -> None:
        """No result: the connection ended without the final event."""


class ChatReader(_SseReader):
    """Reads a chat completion."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: ChatResponse | None = None
        self._calls: list[ToolCall] = []
        self._finish_reason = ""
        self._usage: dict[str, Any] = {}

    def feed(self, data: bytes) -> Iterator[Chunk[Text | Audio]]:
        """Feed bytes; yields new chunks."""
        for content in self._contents(data):
            if content is None:
                text, audio = "".join(self._parts[Text]), b"".join(self._parts[Audio])
                self.result = ChatResponse(text, audio, tuple(self._calls), self._finish_reason, self._usage)
                return
            self._usage = content.get("usage") or self._usage
            for choice in content["choices"]:
                yield from self._delta(choice["delta"])
                self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _delta(self, delta: dict[str, Any]) -> Iterator[Chunk[Text | Audio]]:
        audio: dict[str, Any] = delta.get("audio") or {}
        yield from self._on_text((delta.get("content") or "") + audio.get("transcript", ""))
        yield from self._on_audio(audio.get("data", ""))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            self._calls.append(ToolCall(call["id"], function["name"], function["arguments"]))


class SpeechReader(_SseReader):
    """Reads generated speech."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: SpeechResponse | None = None

    def feed(self, data: bytes) -> Iterator[Chunk[Audio]]:
        """Feed bytes; yields new chunks."""
        for content in self._contents(data):
            if content["type"] == "speech.audio.delta":
                yield from self._on_audio(content["audio"])
            elif content["type"] == "speech.audio.done":
                rate = int(self._head.headers.get("x-sample-rate", "0"))
                self.result = SpeechResponse(b"".join(self._parts[Audio]), rate, content.get("usage") or {})


class TranscriptionReader(_SseReader):
    """Reads a transcription."""

    def __init__(self, head: ResponseHead) -> None:
        super().__init__(head)
        self.result: TranscriptionResponse | None = None

    def feed(self, data: bytes) -> Iterator[Chunk[Text]]:
        """Feed bytes; yields new chunks."""
        for content in self._contents(data):
            if content["type"] == "transcript.text.delta":
                yield from self._on_text(content["delta"])
            elif content["type"] == "transcript.text.done":
                self.result = TranscriptionResponse(content["text"], content.get("usage") or {})


class EmissionReader:
    """Reads emissions of a model and the return value of its route."""

    def __init__(self, head: ResponseHead) -> None:
        self.result: GenerateResponse | None = None
        self._head = head
        self._frames = FrameParser()

    def feed(self, data: bytes) -> Iterator[Chunk[Emission]]:
        """Feed bytes; yields new chunks."""
        for content in self._frames.feed(data):
            if "result" in _raise_on_error(content, self._head):
                self.result = GenerateResponse(content["result"])
                return
            kind, index, value = (content.pop(name) for name in ("kind", "index", "value"))
            emission = Emission(kind, index, value, content)
            digest = blake2b(pack([index, value, content]), digest_size=16).digest()
            yield Chunk(kind, digest, lambda _, emission=emission: emission)

    def finish(self) -> None:
        """No result: the connection ended without the final frame."""
