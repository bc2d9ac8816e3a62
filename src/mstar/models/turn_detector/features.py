"""Acoustic features of the turn detector: log-mel levels, and periodicity by lag, which shows how pitch moves.

Needs numpy only. Both are independent of the volume of a recording.
"""

from __future__ import annotations

import functools
from typing import Any

RATE_HZ = 16_000
HOP_SAMPLES = 256
"""Samples from one frame to the next (16 ms)."""
FRAMES = 188
"""Frames of a window (3 s). The end of the audio is the end of the window; before its start, frames are silent."""
MELS = 40
LAGS = 24
CHANNELS = MELS + LAGS
_FRAME_SAMPLES = 512
_LOWEST_HZ, _HIGHEST_HZ = 70.0, 3600.0
"""Range of the mel levels. Telephones transmit no more."""
_LOWEST_PITCH_HZ, _HIGHEST_PITCH_HZ = 70.0, 420.0
_RANGE_BELS = 6.0
"""Levels further below the maximum count as silence. A bel is 10 dB."""


def compute_features(samples: Any) -> Any:
    """Features of the last 3 s of samples at 16 kHz: float32, [CHANNELS, FRAMES]."""
    import numpy as np

    length = (FRAMES - 1) * HOP_SAMPLES + _FRAME_SAMPLES
    window = np.asarray(samples[-length:], np.float32)
    missing = length - len(window)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(window, (missing, 0)), _FRAME_SAMPLES)[::HOP_SAMPLES]
    spectrum = np.fft.rfft(frames * np.hanning(_FRAME_SAMPLES).astype(np.float32), 2 * _FRAME_SAMPLES)
    power = np.square(np.abs(spectrum)).astype(np.float32)
    levels = np.log10(power @ _mel_filters() + 1e-10)
    floor = levels.max() - _RANGE_BELS
    correlation = np.fft.irfft(power, axis=1)[:, _pitch_lags()].astype(np.float32)
    energy = power.mean(axis=1, keepdims=True) + 10**floor
    features = np.concatenate(
        [np.maximum(levels - floor, 0) / _RANGE_BELS, np.clip(correlation / energy, 0, 1)], axis=1
    )
    return np.ascontiguousarray(features.T, np.float32)


@functools.cache
def _pitch_lags() -> Any:
    """Lags of periods from high to low pitch, in samples, equally spaced in octaves."""
    import numpy as np

    return np.round(RATE_HZ / np.geomspace(_HIGHEST_PITCH_HZ, _LOWEST_PITCH_HZ, LAGS)).astype(int)


@functools.cache
def _mel_filters() -> Any:
    """Triangular filters, [frequencies, MELS]."""
    import numpy as np

    lowest, highest = (2595 * np.log10(1 + hertz / 700) for hertz in (_LOWEST_HZ, _HIGHEST_HZ))
    mels = np.linspace(lowest, highest, MELS + 2)
    centers = 700 * (10 ** (mels / 2595) - 1)
    frequencies = np.linspace(0, RATE_HZ / 2, _FRAME_SAMPLES + 1)[:, None]
    rising = (frequencies - centers[:-2]) / np.diff(centers)[:-1]
    falling = (centers[2:] - frequencies) / np.diff(centers)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
