"""Sound before it is heard: at the rate that a network wants, in pieces that it can hear at once.

Needs no library but that of the samples, and soxr to resample. Nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mstar.asks import Sound

SECONDS = 30
"""So much Whisper hears at once."""


def silence() -> Sound:
    """A second in which nothing is heard."""
    import numpy as np

    return Sound(np.zeros(16_000, np.float32), 16_000)


def resampled(sound: Sound, rate: int) -> Any:
    """The samples of a sound at another rate."""
    import soxr

    return sound.samples if sound.rate == rate else soxr.resample(sound.samples, sound.rate, rate)


def pieces(sound: Sound) -> Iterator[tuple[float, Sound]]:
    """A sound in pieces that can be heard at once, and when each begins: cut where it is quietest, so not in a word."""
    samples, rate, at = sound.samples, sound.rate, 0
    moment, longest = rate // 10, SECONDS * rate
    while len(samples) - at > longest:
        early = at + longest * 2 // 3
        moments = abs(samples[early : early + longest // 3 // moment * moment]).reshape(-1, moment)
        end = early + int(moments.mean(axis=1).argmin()) * moment + moment // 2
        yield at / rate, Sound(samples[at:end], rate)
        at = end
    yield at / rate, Sound(samples[at:], rate)
