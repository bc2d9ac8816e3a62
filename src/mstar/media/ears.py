"""Ears: when somebody begins to speak and when they are done, by how loud it is. No network, no library but numpy.

They hear 16-bit samples, the lower byte first. What is said, they do not know; a steady noise they learn to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

RATE = 24_000
"""Samples a second of all sound that is spoken in a call."""
FRAME_MS = 20
_FRAME = RATE * FRAME_MS // 1000
_QUIET = 0.02
"""How loud a voice is at least, at a threshold of 0.5."""
_ABOVE = 3.0
"""How many times louder than the noise around it a voice is."""
_AGAIN = 3
"""So many frames in a row make a voice: a click is shorter."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Somebody has begun, or is done."""

    is_start: bool
    at_ms: int
    """When, since the ears began to hear."""


class Ears:
    """Hear one client."""

    def __init__(self, threshold: float, silence_ms: int) -> None:
        self.is_speech = False
        self._loud = _QUIET * threshold / 0.5
        self._silence = max(silence_ms // FRAME_MS, 1)
        self._noise = 0.0
        self._run = 0
        """For how many frames it has been otherwise than `is_speech` says."""
        self._at = 0
        self._rest = b""

    def feed(self, pcm: bytes) -> list[Heard]:
        """What these samples tell."""
        pcm = self._rest + pcm
        count = len(pcm) // 2 // _FRAME
        self._rest = pcm[count * _FRAME * 2 :]
        frames = samples_of_pcm(pcm[: count * _FRAME * 2]).reshape(count, _FRAME)
        heard = [self._frame(float(level)) for level in np.sqrt((frames**2).mean(axis=1))]
        return [one for one in heard if one is not None]

    def _frame(self, level: float) -> Heard | None:
        self._at += FRAME_MS
        is_loud = level > max(self._loud, _ABOVE * self._noise)
        if not is_loud:
            self._noise += 0.05 * (level - self._noise)
        self._run = self._run + 1 if is_loud != self.is_speech else 0
        if self._run < (self._silence if self.is_speech else _AGAIN):
            return None
        begun, self._run = self._run, 0
        self.is_speech = is_loud
        return Heard(is_loud, self._at - begun * FRAME_MS if is_loud else self._at)


def samples_of_pcm(pcm: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """16-bit samples as float32 from -1 to 1."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
