"""Recordings of the turn detector's data: lines spoken by synthetic voices, with the times of their words.

Hibari and eSpeak NG speak for training, and eSpeak NG and Kokoro for the test. No voice of a split is in another one.
Recordings are kept in `~/.cache/mstar/turn-detector`, because Kokoro needs minutes for them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mstar import Audio, Model, WordTimestamps
from mstar.nn.audio.resampling import resample
from mstar.requests import SpeechRequest
from tools.turn_detector import espeak
from tools.turn_detector.sentences import Line, Split, backchannels, pauses, sentences, short_turns

RATE_HZ = 16_000
CACHE = Path("~/.cache/mstar/turn-detector").expanduser()
SEED = 25
Engine = Literal["kokoro", "hibari", "espeak"]
_SILENCE = 0.01
"""Level below which a recording is silent, relative to its maximum."""
_VOICES = {
    ("train", "hibari"): "heart",
    ("test", "kokoro"): "af_nova|af_sky|am_liam|am_puck|bf_lily|bm_daniel",
    ("train", "espeak"): (
        "en-us|en-us+f1|en-us+f2|en-us+f3|en-us+m1|en-us+m2|en-us+m3|en-us+m4|en+f4|en+m5|en+m7|en+Alex|"
        "en+Annie|en-gb-x-rp+f2|en-gb-x-rp+Andy|en-gb-x-rp+Andrea|en-029+f1|en-029+m2|en-us+Steph2|en-us+Denis|"
        "en-us+Gene|en+anika|en+david|en-029+Diogo"
    ),
    ("validation", "espeak"): "en-gb-x-gbcwmd|en-gb-x-gbcwmd+m6|en-gb-x-gbcwmd+belinda|en-gb-x-gbcwmd+Lee",
    ("test", "espeak"): (
        "en-gb-scotland|en-gb-scotland+f5|en-gb-x-gbclan+m8|en-gb-x-gbclan+linda|en-us-nyc+Michael|en-us-nyc+steph|"
        "en-gb-scotland+robert|en-us-nyc"
    ),
}
_COUNTS: dict[tuple[Split, Engine], tuple[int, int, int, int]] = {
    ("train", "hibari"): (600, 400, 12, 16),
    ("train", "espeak"): (800, 500, 12, 20),
    ("validation", "espeak"): (100, 60, 6, 4),
    ("test", "kokoro"): (30, 20, 1, 1),
    ("test", "espeak"): (120, 80, 6, 6),
}
"""Number of sentences and pauses, and how often each short turn and each backchannel is spoken."""
_SHIFTS = (0.82, 1.22)
"""Factors of pitch, formants and tempo by which Hibari's only voice is varied."""


def engines(split: Split) -> list[Engine]:
    """Synthesizers of a split."""
    return [engine for of_split, engine in _COUNTS if of_split == split]


@dataclass(frozen=True, slots=True)
class Recording:
    """One spoken line, without the silence around it."""

    line: Line
    voice: str
    samples: Any
    """Float32 at 16 kHz."""
    word_ends: tuple[float, ...]
    """Seconds at which the words end."""


def load_recordings(split: Split, engine: Engine) -> list[Recording]:
    """The recordings of a split; they are synthesized on first use."""
    file = CACHE / f"{split}-{engine}-{SEED}.npz"
    if not file.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        _save(file, list(_synthesize(split, engine)))
    with np.load(file) as stored:
        notes, samples = json.loads(stored["notes"].tobytes()), stored["samples"]
    recordings, start = list[Recording](), 0
    for note in notes:
        end = start + note["length"]
        audio = samples[start:end].astype(np.float32) / 32768
        recordings.append(Recording(Line(**note["line"]), note["voice"], audio, tuple(note["word_ends"])))
        start = end
    return recordings


def _save(file: Path, recordings: Sequence[Recording]) -> None:
    notes = [
        {"line": asdict(one.line), "voice": one.voice, "word_ends": one.word_ends, "length": len(one.samples)}
        for one in recordings
    ]
    samples = np.concatenate([(np.clip(one.samples, -1, 1) * 32767).astype(np.int16) for one in recordings])
    np.savez(file, notes=np.frombuffer(json.dumps(notes).encode(), np.uint8), samples=samples)


def _synthesize(split: Split, engine: Engine) -> Iterator[Recording]:
    rng = random.Random(f"{SEED} {split} {engine}")
    sentence_count, pause_count, short_count, backchannel_count = _COUNTS[split, engine]
    lines = [
        *sentences(split, sentence_count, rng),
        *pauses(split, pause_count, rng),
        *(short_turns(split) * short_count),
        *(backchannels(split) * backchannel_count),
    ]
    voices, speak = _VOICES[split, engine].split("|"), _SYNTHESIZERS[engine]()
    for number, line in enumerate(lines):
        voice = voices[number % len(voices)]
        audio, rate, word_ends = speak(line.text, voice, rng)
        audio = np.asarray(resample(audio, rate, RATE_HZ), np.float32)
        loud = np.flatnonzero(np.abs(audio) > _SILENCE * np.abs(audio).max(initial=1e-6))
        if len(loud) < RATE_HZ // 20:  # the voice does not speak this text
            continue
        start, end = int(loud[0]), int(loud[-1]) + 1
        ends = tuple(round(min(one - start / RATE_HZ, (end - start) / RATE_HZ), 3) for one in word_ends)
        yield Recording(line, voice, audio[start:end], ends)
        if number % 20 == 0:
            print(f"{split} {engine}: {number} of {len(lines)} lines", flush=True)


def _espeak() -> Any:
    def speak(text: str, voice: str, rng: random.Random) -> tuple[Any, int, list[float]]:
        speed, pitch, pitch_range = rng.randint(130, 210), rng.randint(30, 70), rng.randint(35, 80)
        return espeak.speak(text, voice, words_per_minute=speed, pitch=pitch, pitch_range=pitch_range)

    return speak


def _kokoro() -> Any:
    from mstar.models.kokoro.kokoro import Kokoro

    model = Kokoro()

    def speak(text: str, voice: str, rng: random.Random) -> tuple[Any, int, list[float]]:
        return _run(model, SpeechRequest(text, voice, round(rng.uniform(0.85, 1.2), 2), seed=rng.randrange(2**31)), 1.0)

    return speak


def _hibari() -> Any:
    from mstar.models.hibari.tts import Hibari

    model = Hibari()

    def speak(text: str, _: str, rng: random.Random) -> tuple[Any, int, list[float]]:
        shift = rng.uniform(*_SHIFTS)
        speed = round(rng.uniform(0.85, 1.2) / shift, 2)
        return _run(model, SpeechRequest(text, speed=speed, seed=rng.randrange(2**31)), shift)

    return speak


def _run(model: Model, request: SpeechRequest, shift: float) -> tuple[Any, int, list[float]]:
    """Speech that is played `shift` times as fast."""
    emissions = model.run(request).emissions
    audio = np.concatenate([np.asarray(one.value) for one in emissions if isinstance(one, Audio)])
    words = [word for one in emissions if isinstance(one, WordTimestamps) for word in one.value]
    return audio, round(24_000 * shift), [word.end / shift for word in words]


_SYNTHESIZERS = {"kokoro": _kokoro, "hibari": _hibari, "espeak": _espeak}
