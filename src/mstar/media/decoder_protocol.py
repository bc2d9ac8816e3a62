"""What a decoder process and its parent say to each other, as bytes. Neither side decodes anything here."""

from __future__ import annotations

import struct

JOB = struct.Struct("<8sQ")
"""What to decode, as one of IMAGES or SOUNDS, and how many bytes follow."""
HEADER = struct.Struct("<BIII")
"""A verdict, and figures of it: height and width, or rate, channels and seconds. If all is well, blocks follow."""
BLOCK = struct.Struct("<I")
"""How many bytes follow: 0 after the last; MOST if what began well ends here, with another head."""
ABORTED = 0xFFFFFFFF
OK, DAMAGED, TOO_MANY_PIXELS, TOO_LONG, UNSUPPORTED_SHAPE = range(5)
"""Verdicts: it is decoded, or it is damaged, has too many pixels, lasts too long, has odd channels or an odd rate."""
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
MAX_USUAL_RATE = 48_000
"""The highest rate that is usual, in samples a second."""


def max_duration_s(seconds: float, rate: int) -> float:
    """How many seconds a sound may last: one of an unusual rate shorter, so that it is not larger than others."""
    return seconds * min(1.0, MAX_USUAL_RATE / max(rate, 1))
