"""Audio is split where it is quiet, and resampled."""

import numpy as np
import pytest

from mstar.models.whisper.audio import split_at_quiet
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput


def test_audio_is_split_where_it_is_quiet():
    rate, samples = 8000, np.ones(70 * 8000, np.float32)
    for quiet in (24, 47):
        samples[quiet * rate : quiet * rate + rate // 5] = 0
    cut = list(split_at_quiet(AudioInput(samples, rate)))
    assert [start for start, _ in cut] == pytest.approx([0, 24.1, 47.1], abs=0.06)
    assert all(len(piece.samples) <= 30 * rate for _, piece in cut)
    assert np.array_equal(np.concatenate([piece.samples for _, piece in cut]), samples)
    assert [start for start, _ in split_at_quiet(AudioInput(samples[: 30 * rate], rate))] == [0]


def test_resampling_keeps_the_duration():
    sound = AudioInput(np.sin(np.arange(8000, dtype=np.float32)), 8000)
    assert resample(sound.samples, sound.rate, 8000) is sound.samples
    twice = resample(sound.samples, sound.rate, 16_000)
    assert (len(twice), twice.dtype) == (16_000, np.float32)
