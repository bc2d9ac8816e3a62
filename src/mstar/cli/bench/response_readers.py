"""How answers are read as they come: as sound, as events, or as one JSON object at their end. Nothing is asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

DEFAULT_SAMPLE_RATE = 24_000
"""Of sound whose rate nobody tells: that of OpenAI."""
_COMPRESSED_TYPES = ("mpeg", "mp3", "opus", "ogg", "aac", "flac", "mp4", "webm")


class ResponseError(Exception):
    """An answer that is none, with what is said of it."""


class ResponseReader(Protocol):
    """Reads one answer."""

    tokens: int

    def feed(self, data: bytes) -> float:
        """How much came with these bytes that is of use to a client. Raises Failed."""
        ...

    def finish(self) -> float:
        """The same for what is known only now that all is there."""
        ...


class AudioReader:
    """Sound as it is made: 16-bit samples, or a WAV file that grows. Counts seconds."""

    tokens = 0

    def __init__(self, headers: Mapping[str, str]) -> None:
        kind = headers.get("content-type", "")
        if any(name in kind for name in _COMPRESSED_TYPES):
            raise ResponseError(f"the sound is {kind}, and its length cannot be told; only pcm and wav are read")
        self._bytes_per_s = 2 * int(headers.get("x-sample-rate", DEFAULT_SAMPLE_RATE))
        self._head: bytes | None = b""
        """The first bytes, as long as they may be the head of a file."""

    def feed(self, data: bytes) -> float:
        """Seconds of sound in these bytes."""
        if self._head is not None:
            self._head += data
            if b"RIFF".startswith(self._head[:4]) and b"data" not in self._head[:-4]:
                return 0.0  # the head of a WAV file is not complete
            data, self._head = self._parse_header(self._head), None
        return len(data) / self._bytes_per_s

    def _parse_header(self, data: bytes) -> bytes:
        if data.startswith(b"RIFF"):
            at = data.index(b"fmt ") + 16  # where it says how many bytes there are in a second
            self._bytes_per_s = int.from_bytes(data[at : at + 4], "little")
            return data[data.index(b"data") + 8 :]
        return data

    def finish(self) -> float:
        """Nothing more."""
        return 0.0


class SseReader:
    """An event in each line that begins with `data:`."""

    def __init__(self, count: Callable[[Mapping[str, Any]], float]) -> None:
        self.tokens = 0
        self._count = count
        self._pending = b""

    def feed(self, data: bytes) -> float:
        """How much these events bring."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        told = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        return sum(self._on_event(one) for one in told if one != b"[DONE]")

    def _on_event(self, data: bytes) -> float:
        event = decode_json(data)
        self.tokens = completion_tokens(event) or self.tokens
        return self._count(event)

    def finish(self) -> float:
        """The last line, if nothing ended it."""
        return self.feed(b"\n")


class JsonReader:
    """One JSON object."""

    def __init__(self, count: Callable[[Mapping[str, Any]], float]) -> None:
        self.tokens = 0
        self._count = count
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> float:
        """Nothing yet."""
        self._data.append(data)
        return 0.0

    def finish(self) -> float:
        """All of it."""
        content = decode_json(b"".join(self._data))
        self.tokens = completion_tokens(content)
        return self._count(content)


def decode_json(data: bytes) -> dict[str, Any]:
    """The object that JSON stands for. Raises Failed, also if that is an error that the server tells."""
    try:
        content = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ResponseError(f"the answer is no object in JSON: {data[:80]!r}") from None
    if content.get("error"):
        raise ResponseError(error_message(content))
    return content


def error_message(content: Any) -> str:
    """What a server says is wrong, in the shape that OpenAI's have, or in another."""
    error = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(error, dict):
        return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message', error)}"[:300]
    return str(error)[:300]


def completion_tokens(content: Mapping[str, Any]) -> int:
    """How many tokens were written, if it says."""
    return (content.get("usage") or {}).get("completion_tokens") or 0
