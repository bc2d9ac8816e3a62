"""Incremental readers of HTTP responses: PCM or WAV audio, server-sent events, or one JSON object. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

DEFAULT_SAMPLE_RATE = 24_000
"""Samples per second of audio without an X-Sample-Rate header, as in the OpenAI API."""
_COMPRESSED_TYPES = ("mpeg", "mp3", "opus", "ogg", "aac", "flac", "mp4", "webm")


class ResponseError(Exception):
    """An invalid response, or an error reported by the server."""


class ResponseReader(Protocol):
    """Reads one response incrementally."""

    tokens: int

    def feed(self, data: bytes) -> float:
        """Amount of output in these bytes. Raises ResponseError."""
        ...

    def finish(self) -> float:
        """Amount of output known only at the end of the response. Raises ResponseError."""
        ...


class AudioReader:
    """Streamed 16-bit PCM or WAV audio. Counts seconds."""

    tokens = 0

    def __init__(self, headers: Mapping[str, str]) -> None:
        kind = headers.get("content-type", "")
        if any(name in kind for name in _COMPRESSED_TYPES):
            raise ResponseError(f"cannot measure the duration of {kind}; request pcm or wav")
        self._bytes_per_s = 2 * int(headers.get("x-sample-rate", DEFAULT_SAMPLE_RATE))
        self._head: bytes | None = b""
        """First bytes, until they are known to be a WAV header or not."""

    def feed(self, data: bytes) -> float:
        """Seconds of audio in these bytes."""
        if self._head is not None:
            self._head += data
            if b"RIFF".startswith(self._head[:4]) and b"data" not in self._head[:-4]:
                return 0.0  # the WAV header is incomplete
            data, self._head = self._parse_header(self._head), None
        return len(data) / self._bytes_per_s

    def _parse_header(self, data: bytes) -> bytes:
        if data.startswith(b"RIFF"):
            at = data.index(b"fmt ") + 16  # offset of the byte rate
            self._bytes_per_s = int.from_bytes(data[at : at + 4], "little")
            return data[data.index(b"data") + 8 :]
        return data

    def finish(self) -> float:
        """Nothing is left to count."""
        return 0.0


class SseReader:
    """Server-sent events, one JSON object per `data:` line."""

    def __init__(self, count: Callable[[Mapping[str, Any]], float]) -> None:
        self.tokens = 0
        self._count = count
        self._pending = b""

    def feed(self, data: bytes) -> float:
        """Amount of output in the events that these bytes complete."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        events = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        return sum(self._on_event(event) for event in events if event != b"[DONE]")

    def _on_event(self, data: bytes) -> float:
        event = decode_object(data)
        self.tokens = completion_tokens(event) or self.tokens
        return self._count(event)

    def finish(self) -> float:
        """Process the last line if it has no newline."""
        return self.feed(b"\n")


class JsonReader:
    """A response that is one JSON object."""

    def __init__(self, count: Callable[[Mapping[str, Any]], float]) -> None:
        self.tokens = 0
        self._count = count
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> float:
        """Buffer the bytes."""
        self._data.append(data)
        return 0.0

    def finish(self) -> float:
        """Decode the whole response."""
        content = decode_object(b"".join(self._data))
        self.tokens = completion_tokens(content)
        return self._count(content)


def decode_object(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises ResponseError, also for an error object of the server."""
    try:
        content = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ResponseError(f"the response is not a JSON object: {data[:80]!r}") from None
    if content.get("error"):
        raise ResponseError(error_message(content))
    return content


def error_message(content: Any) -> str:
    """Error text of a response in OpenAI's format, or in any other."""
    error = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(error, dict):
        return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message', error)}"[:300]
    return str(error)[:300]


def completion_tokens(content: Mapping[str, Any]) -> int:
    """Completion tokens from `usage`. 0: not reported."""
    return (content.get("usage") or {}).get("completion_tokens") or 0
