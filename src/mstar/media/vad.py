"""Voice activity detection (VAD) by energy: finds the start and end of speech in a realtime session.

Input is 16-bit little-endian PCM at 24 kHz. A frame is speech if its level exceeds a threshold and a running estimate
of the background noise. It needs numpy only; `models.silero` is the neural VAD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SAMPLE_RATE = 24_000
"""Sample rate of realtime audio in Hz."""
FRAME_MS = 20
_FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
_MIN_SPEECH_LEVEL = 0.02
"""Minimum RMS level of speech, at a threshold of 0.5."""
_NOISE_FACTOR = 3.0
"""Minimum ratio of speech to background noise."""
_MIN_SPEECH_FRAMES = 3
"""Minimum consecutive frames of speech. Clicks are shorter."""


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    """Start or end of speech."""

    is_start: bool
    at_ms: int
    """Milliseconds since the start of the stream."""


@dataclass(frozen=True, slots=True)
class VadState:
    """State of a detector, so that another one can continue."""

    is_speech: bool
    noise_level: float
    changed_frames: int
    position_ms: int
    pending: bytes


class EnergyVad:
    """Detects speech in one audio stream."""

    def __init__(self, threshold: float, silence_ms: int) -> None:
        self.is_speech = False
        self._level_threshold = _MIN_SPEECH_LEVEL * threshold / 0.5
        self._silence_frames = max(silence_ms // FRAME_MS, 1)
        self._noise_level = 0.0
        self._changed_frames = 0
        """Consecutive frames that contradict `is_speech`."""
        self._position_ms = 0
        self._pending = b""

    @property
    def state(self) -> VadState:
        """Its state."""
        return VadState(self.is_speech, self._noise_level, self._changed_frames, self._position_ms, self._pending)

    def restore(self, state: VadState) -> None:
        """Continue with a state."""
        self.is_speech, self._noise_level, self._changed_frames = (
            state.is_speech,
            state.noise_level,
            state.changed_frames,
        )
        self._position_ms, self._pending = state.position_ms, state.pending

    def feed(self, pcm: bytes) -> list[SpeechEdge]:
        """Process samples, and return the edges of speech that they complete."""
        pcm = self._pending + pcm
        count = len(pcm) // 2 // _FRAME_SAMPLES
        self._pending = pcm[count * _FRAME_SAMPLES * 2 :]
        frames = pcm_to_samples(pcm[: count * _FRAME_SAMPLES * 2]).reshape(count, _FRAME_SAMPLES)
        edges = [self._process_frame(float(level)) for level in np.sqrt((frames**2).mean(axis=1))]
        return [edge for edge in edges if edge is not None]

    def _process_frame(self, level: float) -> SpeechEdge | None:
        self._position_ms += FRAME_MS
        is_loud = level > max(self._level_threshold, _NOISE_FACTOR * self._noise_level)
        if not is_loud:
            self._noise_level += 0.05 * (level - self._noise_level)
        self._changed_frames = self._changed_frames + 1 if is_loud != self.is_speech else 0
        if self._changed_frames < (self._silence_frames if self.is_speech else _MIN_SPEECH_FRAMES):
            return None
        speech_frames, self._changed_frames = self._changed_frames, 0
        self.is_speech = is_loud
        return SpeechEdge(is_loud, self._position_ms - speech_frames * FRAME_MS if is_loud else self._position_ms)


def pcm_to_samples(pcm: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Convert 16-bit PCM to float32 samples from -1 to 1."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)


def samples_to_pcm(samples: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Convert samples back to the 16-bit PCM that they were made from."""
    return (samples * np.float32(32768)).astype("<i2").tobytes()
