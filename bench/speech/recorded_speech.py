"""Recorded speech of scripts/fetch-speech: 16 minutes of announcements by one speaker, from a Debian package."""

from __future__ import annotations

from pathlib import Path

from mstar.cli.compress.speech import Recording, read_speech
from mstar.errors import LoadError
from mstar.requests import AudioInput

FOLDER = Path.home() / ".cache" / "mstar" / "speech"


def recorded_speech(minutes: float) -> list[Recording]:
    """Recordings of about half a minute each. Raises LoadError if they are missing or too short."""
    if not FOLDER.is_dir():
        raise LoadError(f"the benchmark needs recordings in {FOLDER}\n  fix: scripts/fetch-speech")
    recordings, seconds = list[Recording](), 0.0
    for recording in read_speech(FOLDER):
        if seconds >= 60 * minutes:
            break
        recordings.append(recording)
        seconds += len(recording.sound.samples) / recording.sound.rate
    if seconds < 60 * minutes:
        raise LoadError(f"{FOLDER} has {seconds / 60:.1f} minutes, {minutes:g} are needed\n  fix: pass fewer minutes")
    return recordings


def one_recording(minutes: float) -> AudioInput:
    """All of them as one recording."""
    import numpy as np

    sounds = [recording.sound for recording in recorded_speech(minutes)]
    return AudioInput(np.concatenate([sound.samples for sound in sounds]), sounds[0].rate)
