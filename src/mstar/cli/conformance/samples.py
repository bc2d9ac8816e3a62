"""What is sent when a server is tried: a tone, a picture of one colour. Made here, so that no file is needed."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib

RATE = 24_000
HZ = 300
WIDTH, HEIGHT = 24, 16


def tone(seconds: float = 1.0) -> bytes:
    """A tone as 16-bit samples, loud enough to be taken for somebody who speaks."""
    count = int(seconds * RATE)
    samples = (int(16_000 * math.sin(2 * math.pi * HZ * at / RATE)) for at in range(count))
    return struct.pack(f"<{count}h", *samples)


def wav(seconds: float = 1.0) -> bytes:
    """The same as a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(tone(seconds))
    return file.getvalue()


def png(grey: int) -> bytes:
    """A picture of one grey."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    pixels = (b"\0" + bytes([grey]) * 3 * WIDTH) * HEIGHT
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
