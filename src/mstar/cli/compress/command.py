"""`mstar compress MODEL -o FOLDER`: write a checkpoint whose encoder has low rank, if its word errors allow it.

A component of the model decides how it is compressed (`save_compressed`); that of Whisper does. Of the recordings whose
text is known, every second one is transcribed by both models, and all others calibrate. If the word error rate grows by
more than allowed, nothing is written.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mstar.cli.checkpoints.target import resolve_target
from mstar.cli.compress.speech import Recording, read_speech, speak
from mstar.cli.output import require_writable
from mstar.errors import LoadError, MstarError
from mstar.nn.audio.word_errors import count_word_errors
from mstar.requests import TranscriptionRequest
from mstar.walk.load import load_model

DEFAULT_ENERGY = 0.99
DEFAULT_MINUTES = 6.0
_SEED = 26
_PERCENT = 100


class WordErrors(NamedTuple):
    """How well a model transcribes recordings."""

    percent: float
    seconds: float
    """Of the transcription."""


def add_compress(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Write a checkpoint of a speech recognition model with a smaller and faster encoder."
    compress = commands.add_parser("compress", help=text, description=text)
    compress.add_argument("model", help="Installed name, or a checkpoint: whisper, or the folder of a Whisper.")
    compress.add_argument("-o", "--output", type=Path, required=True, help="Folder to write. It must not exist.")
    compress.add_argument(
        "--rank-energy",
        type=float,
        default=DEFAULT_ENERGY,
        help=f"Share of the variance that each layer keeps, up to 1 (default {DEFAULT_ENERGY}).",
    )
    compress.add_argument(
        "--speech",
        type=Path,
        help="Folder with recordings, and their texts in .txt files of the same names. Without texts, and without "
        "this option, Hibari also speaks generated sentences, which are easier than most speech.",
    )
    compress.add_argument(
        "--minutes",
        type=float,
        default=DEFAULT_MINUTES,
        help=f"Minutes of generated sentences (default {DEFAULT_MINUTES:g}).",
    )
    compress.add_argument(
        "--max-word-error-increase",
        type=float,
        default=1.0,
        metavar="PERCENT",
        help="Refuse to write if the word error rate on recordings that did not calibrate grows by more percentage "
        "points (default 1).",
    )
    compress.set_defaults(run=_compress)


def _compress(options: argparse.Namespace) -> None:
    if not 0 < options.rank_energy <= 1:
        raise LoadError(f"--rank-energy is {options.rank_energy:g}, not a share\n  fix: pass a number such as 0.99")
    if options.output.exists():
        raise LoadError(f"{options.output} exists\n  fix: choose another folder, or remove it")
    require_writable(options.output)
    target = resolve_target(options.model)
    model: Any = load_model(target)
    component = next((one for one in model.components().values() if hasattr(one, "save_compressed")), None)
    if component is None:
        raise LoadError(f"{options.model} cannot be compressed\n  fix: pass whisper, or the folder of a Whisper")
    recordings = read_speech(options.speech) if options.speech else []
    if sum(bool(recording.text) for recording in recordings) < 2:
        recordings += speak(options.minutes, _SEED)
    calibration, held_out = divide(recordings)
    with tempfile.TemporaryDirectory(dir=options.output.absolute().parent, prefix=".compress-") as temporary:
        folder = Path(temporary) / "checkpoint"
        sounds = [recording.sound for recording in calibration]
        component.save_compressed(sounds, options.rank_energy, folder, _show_layers)
        before = transcribe_all(model, held_out, "original")
        after = transcribe_all(load_model(f"{target.partition('@')[0]}@{folder}"), held_out, "compressed")
        increase = after.percent - before.percent
        figures = f"word errors {before.percent:.2f} % before, {after.percent:.2f} % after"
        if increase > options.max_word_error_increase:
            problem = f"{figures}: {increase:.2f} points more, limit {options.max_word_error_increase:g}"
            raise MstarError(f"{problem}\n  fix: pass a larger --rank-energy, or more recordings with --speech")
        shutil.copytree(folder, options.output)
    words = sum(len(recording.text.split()) for recording in held_out)
    speed = before.seconds / after.seconds
    print(f"{figures}, of {words} words; transcription {speed:.2f} times as fast")
    print(f"wrote {options.output}\nnext: mstar serve {options.output}")


def divide(recordings: Sequence[Recording]) -> tuple[list[Recording], list[Recording]]:
    """Recordings that calibrate, and every second one with a text, which are held out."""
    held_out = [recording for recording in recordings if recording.text][1::2]
    numbers = {id(recording) for recording in held_out}  # equality would compare samples
    return [recording for recording in recordings if id(recording) not in numbers], held_out


def transcribe_all(model: Any, recordings: Sequence[Recording], name: str) -> WordErrors:
    """Word errors of a model. Each recording is transcribed by itself."""
    errors = words = 0
    model.run(TranscriptionRequest(recordings[0].sound))  # loads the network
    begun = time.process_time()
    for number, recording in enumerate(recordings, 1):
        transcript = model.run(TranscriptionRequest(recording.sound)).result
        wrong, count = count_word_errors(recording.text, transcript.text)
        errors, words = errors + wrong, words + count
        _show(f"transcribed {number} of {len(recordings)} recordings with the {name} model", number, len(recordings))
    return WordErrors(_PERCENT * errors / words, time.process_time() - begun)


def _show_layers(done: int, total: int) -> None:
    _show(f"compressed {done} of {total} layers", done, total)


def _show(text: str, done: int, total: int) -> None:
    """Overwrite one line on the terminal; without one, print the last line only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}" + ("\n" if done == total else ""))
    elif done == total:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
