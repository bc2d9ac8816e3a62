"""Speech for calibration and for word errors: recordings of a folder, or sentences that Hibari speaks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mstar.cli.compress.sentences import sentences
from mstar.errors import LoadError
from mstar.requests import AudioInput, SpeechRequest
from mstar.walk.load import load_model

VOICE = "hibari"
"""Installed model that speaks."""
MAX_RECORDING_S = 28.0
"""Seconds of a recording: what is longer is cut. Shorter than a window of Whisper, which ends with silence."""
_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
_SENTENCES_PER_RECORDING = 5
_PAUSE_S = 0.3


@dataclass(frozen=True, slots=True)
class Recording:
    """Speech of at most half a minute."""

    sound: AudioInput
    text: str
    """What is said, if it is known."""


def read_speech(folder: Path) -> list[Recording]:
    """The recordings in a folder, each with the text in the .txt file of the same name, if there is one.

    Recordings without a text are joined to longer ones, because calibration needs whole windows of speech.
    """
    import soundfile

    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if not files:
        fix = f"pass a folder with {', '.join(_SUFFIXES)} files, and the text of each in a .txt file beside it"
        raise LoadError(f"{folder} has no recordings\n  fix: {fix}")
    recordings, untold = list[Recording](), list[AudioInput]()
    for file in files:
        try:
            samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise LoadError(f"{file} cannot be read: {error}\n  fix: convert it to WAV, or remove it") from error
        sound, text = AudioInput(samples.mean(1), rate), file.with_suffix(".txt")
        if text.is_file() and len(samples) <= MAX_RECORDING_S * rate:
            recordings.append(Recording(sound, text.read_text(encoding="utf-8")))
        else:
            untold.append(sound)
    return [*recordings, *join_sounds(untold)]


def join_sounds(sounds: list[AudioInput]) -> list[Recording]:
    """Sounds of any length as recordings of the longest length, with short pauses between them."""
    import numpy as np

    recordings = list[Recording]()
    for rate in sorted({sound.rate for sound in sounds}):
        pause = np.zeros(int(_PAUSE_S * rate), np.float32)
        parts = [part for sound in sounds if sound.rate == rate for part in (sound.samples, pause)]
        samples, size = np.concatenate(parts), int(MAX_RECORDING_S * rate)
        recordings += [Recording(AudioInput(samples[at : at + size], rate), "") for at in range(0, len(samples), size)]
    return recordings


def speak(minutes: float, seed: int) -> list[Recording]:
    """At least this many minutes of sentences that this seed selects."""
    model, texts, recordings, seconds = load_model(VOICE), sentences(seed), list[Recording](), 0.0
    while seconds < 60 * minutes:
        recording = speak_text(model, " ".join(islice(texts, _SENTENCES_PER_RECORDING)), seed=len(recordings))
        recordings.append(recording)
        seconds += len(recording.sound.samples) / recording.sound.rate
    return recordings


def speak_text(model: Any, text: str, *, seed: int) -> Recording:
    """A text, spoken by a model for speech."""
    import numpy as np

    emissions = model.run(SpeechRequest(text, seed=seed)).emissions
    sounds = [one for one in emissions if type(one).__name__ == "Audio"]
    samples = np.concatenate([np.asarray(one.value, np.float32) for one in sounds])
    return Recording(AudioInput(samples, sounds[0].rate), text)
