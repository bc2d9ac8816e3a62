"""Sound before it is heard: at the rate that a network wants, in pieces that it can hear at once.

Nothing is decoded or resampled here.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar.requests import AudioInput

MAX_CHUNK_S = 30
"""So much Whisper hears at once."""


def make_silence() -> AudioInput:
    """A second in which nothing is heard."""
    import numpy as np

    return AudioInput(np.zeros(16_000, np.float32), 16_000)


def split_at_quiet(sound: AudioInput) -> Iterator[tuple[float, AudioInput]]:
    """A sound in pieces that can be heard at once, and when each begins: cut where it is quietest, so not in a word."""
    samples, rate, at = sound.samples, sound.rate, 0
    moment, longest = rate // 10, MAX_CHUNK_S * rate
    while len(samples) - at > longest:
        early = at + longest * 2 // 3
        moments = abs(samples[early : early + longest // 3 // moment * moment]).reshape(-1, moment)
        end = early + int(moments.mean(axis=1).argmin()) * moment + moment // 2
        yield at / rate, AudioInput(samples[at:end], rate)
        at = end
    yield at / rate, AudioInput(samples[at:], rate)
