"""Answers as they are read: bytes of the server become pieces for the caller, and in the end a result.

A reader reads one answer from its beginning. When one is asked for again, another reads it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from mstar.client.answers import Audio, Emission, Generated, Heard, Reply, Spoken, Text, ToolCall
from mstar.client.arrays import pack, unpack
from mstar.client.errand import Answered, Piece
from mstar.client.errors import refusal
from mstar.client.frames import Events, Frames, decoded

R = TypeVar("R")


def _checked(content: Any, head: Answered) -> Any:
    """An event, unless it says what went wrong."""
    if "error" in content:
        status = 500 if content["error"].get("type") == "server_error" else 400
        raise refusal(status, content, head.headers.get("x-request-id", ""), {})
    return content


def _words(text: str) -> Piece[Text]:
    return Piece("text", text.encode(), lambda fresh: Text(fresh.decode()))


def _sound(coded: str) -> Piece[Audio]:
    return Piece("audio", b64decode(coded), Audio)


class Whole(Generic[R]):
    """An answer that is nothing before its end. `made` says what it is then."""

    def __init__(self, head: Answered, made: Callable[[Any], R]) -> None:
        self.result: R | None = None
        self._data = bytearray()
        self._made = made
        self._decode = unpack if "msgpack" in head.headers.get("content-type", "") else decoded

    def feed(self, data: bytes) -> Iterator[Piece[Any]]:
        """Read on."""
        self._data += data
        yield from ()

    def end(self) -> None:
        """Now it is something."""
        self.result = self._made(self._decode(bytes(self._data)))


class _Told:
    """An answer in events."""

    def __init__(self, head: Answered) -> None:
        self._head = head
        self._events = Events()
        self._parts: dict[type, list[Any]] = {Text: [], Audio: []}

    def _contents(self, data: bytes) -> Iterator[Any]:
        for event in self._events.feed(data):
            yield None if event == b"[DONE]" else _checked(decoded(event), self._head)

    def _said(self, text: str) -> Iterator[Piece[Text]]:
        if text:
            self._parts[Text].append(text)
            yield _words(text)

    def _sounded(self, coded: str) -> Iterator[Piece[Audio]]:
        if coded:
            piece = _sound(coded)
            self._parts[Audio].append(piece.content)
            yield piece

    def end(self) -> None:
        """An end that no event told of is none."""


class ChatReader(_Told):
    """An answer of a chat."""

    def __init__(self, head: Answered) -> None:
        super().__init__(head)
        self.result: Reply | None = None
        self._calls: list[ToolCall] = []
        self._reason = ""
        self._usage: dict[str, Any] = {}

    def feed(self, data: bytes) -> Iterator[Piece[Text | Audio]]:
        """Read on."""
        for content in self._contents(data):
            if content is None:
                text, audio = "".join(self._parts[Text]), b"".join(self._parts[Audio])
                self.result = Reply(text, audio, tuple(self._calls), self._reason, self._usage)
                return
            self._usage = content.get("usage") or self._usage
            for choice in content["choices"]:
                yield from self._delta(choice["delta"])
                self._reason = choice.get("finish_reason") or self._reason

    def _delta(self, delta: dict[str, Any]) -> Iterator[Piece[Text | Audio]]:
        audio: dict[str, Any] = delta.get("audio") or {}
        yield from self._said((delta.get("content") or "") + audio.get("transcript", ""))
        yield from self._sounded(audio.get("data", ""))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            self._calls.append(ToolCall(call["id"], function["name"], function["arguments"]))


class SpeechReader(_Told):
    """A text that is said."""

    def __init__(self, head: Answered) -> None:
        super().__init__(head)
        self.result: Spoken | None = None

    def feed(self, data: bytes) -> Iterator[Piece[Audio]]:
        """Read on."""
        for content in self._contents(data):
            if content["type"] == "speech.audio.delta":
                yield from self._sounded(content["audio"])
            elif content["type"] == "speech.audio.done":
                rate = int(self._head.headers.get("x-sample-rate", "0"))
                self.result = Spoken(b"".join(self._parts[Audio]), rate, content.get("usage") or {})


class HearingReader(_Told):
    """What is said in a file."""

    def __init__(self, head: Answered) -> None:
        super().__init__(head)
        self.result: Heard | None = None

    def feed(self, data: bytes) -> Iterator[Piece[Text]]:
        """Read on."""
        for content in self._contents(data):
            if content["type"] == "transcript.text.delta":
                yield from self._said(content["delta"])
            elif content["type"] == "transcript.text.done":
                self.result = Heard(content["text"], content.get("usage") or {})


class EmissionReader:
    """A model's emissions in its own terms, and what its route gave."""

    def __init__(self, head: Answered) -> None:
        self.result: Generated | None = None
        self._head = head
        self._frames = Frames()

    def feed(self, data: bytes) -> Iterator[Piece[Emission]]:
        """Read on."""
        for content in self._frames.feed(data):
            if "result" in _checked(content, self._head):
                self.result = Generated(content["result"])
                return
            kind, index, value = (content.pop(name) for name in ("kind", "index", "value"))
            emission = Emission(kind, index, value, content)
            digest = blake2b(pack([index, value, content]), digest_size=16).digest()
            yield Piece(kind, digest, lambda _, emission=emission: emission)

    def end(self) -> None:
        """An end that no frame told of is none."""
