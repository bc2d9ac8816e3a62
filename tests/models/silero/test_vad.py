"""Silero with its published weights: it detects speech between silences, and none in noise."""

import numpy as np
import pytest

from mstar.models.silero.vad import SileroVad
from mstar.requests import AudioInput


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8000, 16_000])
def test_speech_is_detected_and_noise_is_not(peter, rate):
    voice = peter.samples[:: peter.rate // rate]
    hush = np.zeros(2 * rate, np.float32)
    speech = SileroVad().detect_speech(AudioInput(np.concatenate([hush, voice, hush]), rate))
    assert speech.start == pytest.approx(2, abs=0.4)
    assert speech.end == pytest.approx(2 + len(voice) / rate, abs=0.6)
    noise = np.random.default_rng(0).normal(0, 0.05, 3 * rate).astype(np.float32)
    for silent in (hush, noise, noise[:10]):
        assert SileroVad().detect_speech(AudioInput(silent, rate)).end == 0
