"""Writes the recordings of the test split that the tests read: `python -m tools.turn_detector --samples FOLDER`.

They are the first lines of each kind in each engine's voices, not selected by how well they are detected.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import soundfile

from tools.turn_detector.recordings import RATE_HZ, engines, load_recordings

KINDS = ("sentence", "pause", "short", "backchannel")
COUNT = 8
"""Recordings of each kind and engine."""


def write_samples(folder: Path) -> None:
    """Write `held_out.ogg` and `held_out.json`."""
    recordings = [
        recording
        for engine in engines("test")
        for kind in KINDS
        for recording in islice((one for one in load_recordings("test", engine) if one.line.kind == kind), COUNT)
    ]
    notes = [
        {**asdict(one.line), "voice": one.voice, "word_ends": one.word_ends, "length": len(one.samples)}
        for one in recordings
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held_out.json").write_text("[\n" + ",\n".join(json.dumps(note) for note in notes) + "\n]\n")
    samples = np.concatenate([one.samples for one in recordings])
    soundfile.write(folder / "held_out.ogg", samples, RATE_HZ, format="OGG", subtype="VORBIS")
