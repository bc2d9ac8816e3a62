"""Audio chunking for Whisper: silence for warm-up, and cuts at the quietest moment.

Nothing is decoded or resampled here. Overlapping chunks are in `merge`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar.requests import AudioInput

MAX_CHUNK_S = 30
"""Seconds of audio that Whisper encodes at once."""


def make_silence() -> AudioInput:
    """One second of silence at 16 kHz."""
    import numpy as np

    return AudioInput(np.zeros(16_000, np.float32), 16_000)


def split_at_quiet(sound: AudioInput) -> Iterator[tuple[float, AudioInput]]:
    """Yield chunks of at most 30 s with their start times, cut at the quietest point so that no word is split."""
    samples, rate, at = sound.samples, sound.rate, 0
    frame, max_samples = rate // 10, MAX_CHUNK_S * rate
    while len(samples) - at > max_samples:
        search_start = at + max_samples * 2 // 3
        frames = abs(samples[search_start : search_start + max_samples // 3 // frame * frame]).reshape(-1, frame)
        end = search_start + int(frames.mean(axis=1).argmin()) * frame + frame // 2
        yield at / rate, AudioInput(samples[at:end], rate)
        at = end
    yield at / rate, AudioInput(samples[at:], rate)
