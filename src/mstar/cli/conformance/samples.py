"""Generated test inputs: a tone as PCM or WAV, and a PNG image of one gray level. Needs no files."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib

RATE = 24_000
HZ = 300
WIDTH = 24
HEIGHT = 16


def tone(seconds: float = 1.0) -> bytes:
    """A tone as 16-bit PCM, loud enough to trigger voice activity detection."""
    count = int(seconds * RATE)
    samples = (int(16_000 * math.sin(2 * math.pi * HZ * at / RATE)) for at in range(count))
    return struct.pack(f"<{count}h", *samples)


def wav(seconds: float = 1.0) -> bytes:
    """The tone as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(tone(seconds))
    return file.getvalue()


def png(gray: int) -> bytes:
    """An image of one gray level."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    pixels = (b"\0" + bytes([gray]) * 3 * WIDTH) * HEIGHT
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
