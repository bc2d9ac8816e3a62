"""Binary protocol between the decoder pool and its sandboxed processes."""

from __future__ import annotations

import struct

JOB = struct.Struct("<8sQ")
"""Job: format (one of IMAGE_FORMATS or AUDIO_FORMATS), and the number of bytes that follow."""
HEADER = struct.Struct("<BIII")
"""Response: status and three values (height and width; or rate, channels and seconds). After OK, blocks follow."""
BLOCK = struct.Struct("<I")
"""Block: number of bytes that follow. 0 ends the data; ABORTED ends it with an error header."""
ABORTED = 0xFFFFFFFF
OK = 0
DAMAGED = 1
TOO_MANY_PIXELS = 2
TOO_LONG = 3
UNSUPPORTED_SHAPE = 4
"""Unsupported channel count or sample rate."""
ACCEPTED = 5
"""First response to a file within the limits: its decoded size in bytes, as low and high 32 bits; 0 if it is unknown.
The parent answers with PROCEED or SKIP. After SKIP nothing follows."""
PROCEED = b"\x01"
SKIP = b"\x00"
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
MAX_USUAL_RATE = 48_000
"""Sample rate in Hz up to which audio can have the full duration."""


def max_duration_s(seconds: float, rate: int) -> float:
    """Return the maximum duration for a sample rate. Higher rates allow less, so that memory is bounded."""
    return seconds * min(1.0, MAX_USUAL_RATE / max(rate, 1))
