"""Training examples of the turn detector: what a session hears of a recording at the moment of a decision.

| class | examples |
|---|---|
| continues | a sentence cut after a word, or the beginning of one, and a pause; the first half second of a sentence |
| end of turn | a complete sentence or a short turn, and a pause |
| backchannel | a backchannel and a pause, or its first half second |

The channel is varied: noise, echo, volume, bandwidth of a telephone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstar.models.turn_detector.features import FRAMES, HOP_SAMPLES, RATE_HZ, compute_features
from mstar.models.turn_detector.network import CLASSES
from tools.turn_detector.recordings import Recording

CONTINUES, END_OF_TURN, BACKCHANNEL = range(len(CLASSES))
MAX_SAMPLES = FRAMES * HOP_SAMPLES
_FFT_SIZE = 1 << 16
"""Samples of a filtered clip, and of the echo after it."""
_PAUSE_S = (0.12, 0.30)
"""Silence that a VAD has heard when it reports a pause. It counts soft sounds at the end of a word as silence."""
_ONSET_S = (0.45, 0.7)
"""Speech that a session has heard when it decides on an interruption."""
_LEAD_S = (0.0, 0.35)
"""Audio before the speech."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Audio at a decision, and the right answer."""

    samples: Any
    """Float32 at 16 kHz."""
    label: int
    recording: Recording
    is_onset: bool
    """Whether the speaker has not paused yet."""


def cut_clips(recording: Recording, rng: random.Random) -> Iterator[Clip]:
    """The examples of a recording, on a clean channel."""
    whole, kind = recording.samples, recording.line.kind
    label = {"sentence": END_OF_TURN, "short": END_OF_TURN, "pause": CONTINUES, "backchannel": BACKCHANNEL}[kind]
    yield Clip(_with_pause(whole, 0.03, rng), label, recording, is_onset=False)
    if kind == "sentence":
        inner = [end for end in recording.word_ends[:-1] if 0.3 < end < len(whole) / RATE_HZ - 0.25]
        for end in rng.sample(inner, min(2, len(inner))):
            part = whole[: int((end + rng.uniform(0, 0.05)) * RATE_HZ)]
            yield Clip(_with_pause(part, rng.uniform(0.03, 0.1), rng), CONTINUES, recording, is_onset=False)
    onset = int(rng.uniform(*_ONSET_S) * RATE_HZ)
    if len(whole) >= onset:
        onset_label = CONTINUES if kind in ("sentence", "pause") else label
        yield Clip(_with_lead(whole[:onset], rng), onset_label, recording, is_onset=True)


def _with_pause(speech: Any, fade_s: float, rng: random.Random) -> Any:
    """Speech that fades, and silence after it."""
    faded, count = np.array(speech), min(int(fade_s * RATE_HZ), len(speech))
    faded[len(faded) - count :] *= np.linspace(1, 0, count, dtype=np.float32)
    silence = np.zeros(int(rng.uniform(*_PAUSE_S) * RATE_HZ), np.float32)
    return _with_lead(np.concatenate([faded, silence]), rng)


def _with_lead(samples: Any, rng: random.Random) -> Any:
    lead = np.zeros(int(rng.uniform(*_LEAD_S) * RATE_HZ), np.float32)
    return np.concatenate([lead, samples])[-MAX_SAMPLES:]


def vary_channel(samples: Any, babble: Sequence[Recording], rng: random.Random) -> Any:
    """The same speech with noise, echo and another volume, or over a telephone."""
    noise_rng = np.random.default_rng(rng.randrange(2**63))
    if rng.random() < 0.4:
        samples = _add_echo(samples, rng, noise_rng)
    level = float(np.sqrt(np.mean(np.square(samples)))) + 1e-6
    noise = _noise(len(samples), babble, rng, noise_rng)
    samples = samples + noise * (level * 10 ** (-rng.uniform(8, 40) / 20))
    if rng.random() < 0.3:
        frequencies = np.fft.rfftfreq(_FFT_SIZE, 1 / RATE_HZ)
        samples = _filter(samples, (frequencies > 200) & (frequencies < 3400))
    samples = samples * 10 ** (rng.uniform(-25, 0) / 20) / max(float(np.abs(samples).max()), 1e-6)
    return (np.round(samples * 32767) / 32768).astype(np.float32)


def _add_echo(samples: Any, rng: random.Random, noise_rng: np.random.Generator) -> Any:
    """Reverberation: decaying noise after the direct sound."""
    count = int(rng.uniform(0.05, 0.25) * RATE_HZ)
    response = noise_rng.normal(0, 1, count) * np.exp(-6 * np.arange(count) / count)
    response *= rng.uniform(0.1, 0.5) / np.sqrt(np.sum(np.square(response)))
    response[0] = 1
    return _filter(samples, np.fft.rfft(response, _FFT_SIZE))


def _filter(samples: Any, transfer: Any) -> Any:
    return np.fft.irfft(np.fft.rfft(samples, _FFT_SIZE) * transfer, _FFT_SIZE)[: len(samples)]


def _noise(count: int, babble: Sequence[Recording], rng: random.Random, noise_rng: np.random.Generator) -> Any:
    """White noise, noise of a room, hum, or distant voices, with level 1."""
    kind = rng.randrange(4)
    if kind == 3:
        voices = [np.resize(rng.choice(babble).samples, count) for _ in range(6)]
        noise = np.sum([voice / (np.sqrt(np.mean(np.square(voice))) + 1e-6) for voice in voices], axis=0)
    elif kind == 2:
        phase = 2 * np.pi * rng.choice((50, 60)) * np.arange(count) / RATE_HZ
        noise = sum(np.sin(n * phase + rng.random() * 6) / n for n in (1, 2, 3, 5))
    else:
        noise = noise_rng.normal(0, 1, count)
        if kind == 1:
            noise = _filter(noise, 1 / np.sqrt(np.arange(_FFT_SIZE // 2 + 1) + 1))
    return noise / (np.sqrt(np.mean(np.square(noise))) + 1e-6)


def make_clips(recordings: Sequence[Recording], copies: int, seed: str) -> list[Clip]:
    """Examples of all recordings, each recording `copies` times with other cuts and channels."""
    rng = random.Random(seed)
    return [
        Clip(vary_channel(clip.samples, recordings, rng), clip.label, clip.recording, clip.is_onset)
        for _ in range(copies)
        for recording in recordings
        for clip in cut_clips(recording, rng)
    ]


def to_arrays(clips: Sequence[Clip]) -> tuple[Any, Any]:
    """Features and labels."""
    features = np.stack([compute_features(clip.samples).astype(np.float16) for clip in clips])
    return features, np.array([clip.label for clip in clips])
