"""Ears: when somebody begins to speak and when they are done, by how loud it is. No network, no library but numpy.

They hear 16-bit samples, the lower byte first. What is said, they do not know; a steady noise they learn to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SAMPLE_RATE = 24_000
"""Samples a second of all sound that is spoken in a call."""
FRAME_MS = 20
_FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
_MIN_SPEECH_LEVEL = 0.02
"""How loud a voice is at least, at a threshold of 0.5."""
_NOISE_FACTOR = 3.0
"""How many times louder than the noise around it a voice is."""
_MIN_SPEECH_FRAMES = 3
"""So many frames in a row make a voice: a click is shorter."""


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    """Somebody has begun, or is done."""

    is_start: bool
    at_ms: int
    """When, since the ears began to hear."""


class EnergyVad:
    """Hear one client."""

    def __init__(self, threshold: float, silence_ms: int) -> None:
        self.is_speech = False
        self._level_threshold = _MIN_SPEECH_LEVEL * threshold / 0.5
        self._silence_frames = max(silence_ms // FRAME_MS, 1)
        self._noise_level = 0.0
        self._changed_frames = 0
        """For how many frames it has been otherwise than `is_speech` says."""
        self._position_ms = 0
        self._pending = b""

    def feed(self, pcm: bytes) -> list[SpeechEdge]:
        """What these samples tell."""
        pcm = self._pending + pcm
        count = len(pcm) // 2 // _FRAME_SAMPLES
        self._pending = pcm[count * _FRAME_SAMPLES * 2 :]
        frames = pcm_to_samples(pcm[: count * _FRAME_SAMPLES * 2]).reshape(count, _FRAME_SAMPLES)
        heard = [self._process_frame(float(level)) for level in np.sqrt((frames**2).mean(axis=1))]
        return [one for one in heard if one is not None]

    def _process_frame(self, level: float) -> SpeechEdge | None:
        self._position_ms += FRAME_MS
        is_loud = level > max(self._level_threshold, _NOISE_FACTOR * self._noise_level)
        if not is_loud:
            self._noise_level += 0.05 * (level - self._noise_level)
        self._changed_frames = self._changed_frames + 1 if is_loud != self.is_speech else 0
        if self._changed_frames < (self._silence_frames if self.is_speech else _MIN_SPEECH_FRAMES):
            return None
        begun, self._changed_frames = self._changed_frames, 0
        self.is_speech = is_loud
        return SpeechEdge(is_loud, self._position_ms - begun * FRAME_MS if is_loud else self._position_ms)


def pcm_to_samples(pcm: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """16-bit samples as float32 from -1 to 1."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
