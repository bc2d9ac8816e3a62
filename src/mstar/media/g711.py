"""G.711, the audio of telephony: µ-law and A-law, 8 bits per sample at 8 kHz, to and from float32 samples."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

G711_RATE_HZ = 8000
Law = Literal["ulaw", "alaw"]
Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode_g711(data: bytes, law: Law) -> Samples:
    """Samples from -1 to 1."""
    return (_levels(law)[np.frombuffer(data, np.uint8)] / np.float32(32768)).astype(np.float32)


def encode_g711(samples: Samples, law: Law) -> bytes:
    """The nearest level of each sample."""
    integers = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int32)
    return _codes(law)[integers + 32768].tobytes()


@functools.cache
def _levels(law: Law) -> np.ndarray[Any, np.dtype[np.int16]]:
    """16-bit sample of each code (ITU-T G.711)."""
    codes = np.arange(256)
    if law == "ulaw":
        inverted = ~codes & 0xFF
        magnitude = (((inverted & 0x0F) << 3) + 0x84 << ((inverted & 0x70) >> 4)) - 0x84
        return np.where(inverted & 0x80, -magnitude, magnitude).astype(np.int16)
    toggled = codes ^ 0x55
    exponent, mantissa = (toggled & 0x70) >> 4, (toggled & 0x0F) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, mantissa + 0x108 << np.maximum(exponent - 1, 0))
    return np.where(toggled & 0x80, magnitude, -magnitude).astype(np.int16)


@functools.cache
def _codes(law: Law) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Code of each 16-bit sample, from -32768 on."""
    order = np.argsort(_levels(law), kind="stable")
    levels = _levels(law)[order].astype(np.int32)
    borders = (levels[:-1] + levels[1:] + 1) // 2
    return order[np.searchsorted(borders, np.arange(-32768, 32768), side="right")].astype(np.uint8)
