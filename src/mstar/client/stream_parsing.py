"""Streams of bytes as what they consist of: events as browsers know them, and frames of msgpack.

Told bytes in whatever pieces they come, each gives what is complete. What it means is read by others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mstar.client.arrays import unpack

_LENGTH_BYTES = 4


def decode_json(data: bytes) -> Any:
    """What JSON stands for; what is none is kept as a text, since even that may say what went wrong."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data.decode(errors="replace")


class SseParser:
    """Events of the server, each as its data."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each event that is complete now."""
        *whole, self._pending = (self._pending + data).split(b"\n\n")
        for event in whole:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            yield b"\n".join(lines)


class FrameParser:
    """Four bytes of length, lowest first, then so many bytes of msgpack."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The value of each frame that is complete now."""
        self._pending += data
        while len(self._pending) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._pending[:_LENGTH_BYTES], "little")
            if len(self._pending) < end:
                return
            value = unpack(bytes(self._pending[_LENGTH_BYTES:end]))
            del self._pending[:end]
            yield value
