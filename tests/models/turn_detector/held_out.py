"""Recordings of voices and sentences that the turn detector was not trained on (`tools.turn_detector.samples`)."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from mstar.requests import AudioInput

FOLDER = Path(__file__).parent
RATE = 16_000


@dataclass(frozen=True)
class HeldOut:
    """A recording without silence around it; a `pause` breaks off."""

    text: str
    kind: str
    voice: str
    word_ends: list[float]
    samples: Any

    def sound(self, seconds=None, silence=0.2):
        """Its first seconds, and silence."""
        end = None if seconds is None else int(seconds * RATE)
        return AudioInput(np.concatenate([self.samples[:end], np.zeros(int(silence * RATE), np.float32)]), RATE)


@functools.cache
def held_out():
    samples, rate = soundfile.read(FOLDER / "held_out.ogg", dtype="float32")
    assert rate == RATE
    recordings, start = [], 0
    for note in json.loads((FOLDER / "held_out.json").read_bytes()):
        length = note.pop("length")
        recordings.append(HeldOut(**note, samples=samples[start : start + length]))
        start += length
    return recordings


def of_kind(kind):
    return [one for one in held_out() if one.kind == kind]
