"""Silero: voice activity detection (VAD), a recurrent network run with ONNX Runtime.

One component with one op, `detect_speech`. It returns the span from the first to the last word; it does not recognize
words or speakers. Only the network file of the package is used.

    pip install 'mstar-serve[onnx]' && pip install --no-deps silero-vad==6.2.3
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from mstar import Component, op
from mstar.nn.audio.resampling import resample
from mstar.nn.onnx import open_session
from mstar.nn.weights.sources import PackageFile
from mstar.requests import AudioInput, Segment
from mstar.walk.twin import OpBody, TwinSizes

SILERO_WEIGHTS = PackageFile(
    "silero-vad",
    "6.2.3",
    "silero_vad/data/silero_vad.onnx",
    "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    "MIT",
)
SAMPLE_RATE_HZ = 16_000
_FRAME_SAMPLES = 512
"""Samples per network call (32 ms)."""
_CONTEXT_SAMPLES = 64
"""Samples before a frame that the network reads again."""
_SPEECH_THRESHOLD = 0.5
_PADDING_S = 0.25
"""Seconds kept before and after the detected speech, because words begin and end softly."""
_SILENCE_LEVEL = 0.01
"""Amplitude below which a twin takes audio for silence."""


class SileroVad(Component):
    """Silero VAD 6 at 16 kHz."""

    weights = (SILERO_WEIGHTS,)

    @functools.cached_property
    def _session(self) -> Any:
        return open_session("Silero VAD", SILERO_WEIGHTS.path())

    def prepare(self) -> None:
        """Load the network."""
        _ = self._session

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:  # noqa: ARG002 - there are none
        """Take all audio for speech, except silence."""
        return {"detect_speech": SileroVad._detect_sound}

    def _detect_sound(self, sound: AudioInput) -> Segment:
        """`detect_speech` without the network."""
        is_silent = abs(sound.samples).max(initial=0.0) < _SILENCE_LEVEL
        return Segment(0.0, 0.0 if is_silent else len(sound.samples) / sound.rate, "")

    @op
    def detect_speech(self, sound: AudioInput) -> Segment:
        """Return the span from the first to the last speech frame, or an empty span for silence."""
        import numpy as np

        samples = resample(sound.samples, sound.rate, SAMPLE_RATE_HZ)
        padded = np.pad(samples, (_CONTEXT_SAMPLES, -len(samples) % _FRAME_SAMPLES)).astype(np.float32)
        state, speech_starts = np.zeros((2, 1, 128), np.float32), list[int]()
        for at in range(0, len(padded) - _CONTEXT_SAMPLES, _FRAME_SAMPLES):
            inputs = {
                "input": padded[None, at : at + _CONTEXT_SAMPLES + _FRAME_SAMPLES],
                "state": state,
                "sr": np.array(SAMPLE_RATE_HZ),
            }
            probability, state = self._session.run(None, inputs)
            if probability.item() > _SPEECH_THRESHOLD:
                speech_starts.append(at)
        if not speech_starts:
            return Segment(0.0, 0.0, "")
        start = speech_starts[0] / SAMPLE_RATE_HZ - _PADDING_S
        end = (speech_starts[-1] + _FRAME_SAMPLES) / SAMPLE_RATE_HZ + _PADDING_S
        return Segment(max(start, 0.0), min(end, len(samples) / SAMPLE_RATE_HZ), "")
