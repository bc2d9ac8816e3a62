"""Incremental parsers: server-sent events (SSE) and length-prefixed msgpack frames.

They accept bytes in pieces of any size and return complete items. `response_readers` interprets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mstar.client.arrays import unpack

_LENGTH_BYTES = 4


def decode_json(data: bytes) -> Any:
    """Decode JSON; return invalid JSON as text, since even that can explain an error."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data.decode(errors="replace")


class SseParser:
    """Parses server-sent events."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Feed bytes; yields the data of each complete event."""
        *events, self._pending = (self._pending + data).split(b"\n\n")
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            yield b"\n".join(lines)


class FrameParser:
    """Parses frames: 4 bytes of length (little-endian), then msgpack."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Feed bytes; yields the value of each complete frame."""
        self._pending += data
        while len(self._pending) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._pending[:_LENGTH_BYTES], "little")
            if len(self._pending) < end:
                return
            value = unpack(bytes(self._pending[_LENGTH_BYTES:end]))
            del self._pending[:end]
            yield value
