"""Sound is cut in pieces where it is quiet, and brought to another rate."""

import numpy as np
import pytest

from mstar.asks import Sound
from mstar.models.voice.sounds import pieces, resampled


def test_pieces_are_cut_where_it_is_quiet():
    rate, samples = 8000, np.ones(70 * 8000, np.float32)
    for quiet in (24, 47):
        samples[quiet * rate : quiet * rate + rate // 5] = 0
    cut = list(pieces(Sound(samples, rate)))
    assert [start for start, _ in cut] == pytest.approx([0, 24.1, 47.1], abs=0.06)
    assert all(len(piece.samples) <= 30 * rate for _, piece in cut)
    assert np.array_equal(np.concatenate([piece.samples for _, piece in cut]), samples)
    assert [start for start, _ in pieces(Sound(samples[: 30 * rate], rate))] == [0]


def test_a_sound_keeps_its_length_at_another_rate():
    sound = Sound(np.sin(np.arange(8000, dtype=np.float32)), 8000)
    assert resampled(sound, 8000) is sound.samples
    twice = resampled(sound, 16_000)
    assert (len(twice), twice.dtype) == (16_000, np.float32)
