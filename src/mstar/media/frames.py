"""What a decoder process and its parent say to each other, as bytes. Neither side decodes anything here."""

from __future__ import annotations

import struct

JOB = struct.Struct("<8sQ")
"""What to decode, as one of IMAGES or SOUNDS, and how many bytes follow."""
HEAD = struct.Struct("<BIII")
"""A verdict, and figures of it: height and width, or rate, channels and seconds. If all is well, blocks follow."""
BLOCK = struct.Struct("<I")
"""How many bytes follow: 0 after the last; MOST if what began well ends here, with another head."""
MOST = 0xFFFFFFFF
FINE, DAMAGED, PIXELS, SECONDS, SHAPE = range(5)
"""Verdicts: it is decoded, or it is damaged, has too many pixels, lasts too long, has odd channels or an odd rate."""
IMAGES = ("PNG", "JPEG", "WEBP", "GIF")
SOUNDS = ("WAV", "FLAC", "OGG", "MP3")
HIGHEST = 48_000
"""The highest rate that is usual, in samples a second."""


def longest(seconds: float, rate: int) -> float:
    """How many seconds a sound may last: one of an unusual rate shorter, so that it is not larger than others."""
    return seconds * min(1.0, HIGHEST / max(rate, 1))
