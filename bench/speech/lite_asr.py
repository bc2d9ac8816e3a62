"""Whisper tiny.en with an encoder of lower rank, at several shares of variance: its size, time and word errors.

As `mstar compress` does it: half of the recordings calibrates, the other half is transcribed by the original model and
by each compressed one. The recordings come without texts, so a word error is a word that the original model transcribed
otherwise; the word error rate cannot have grown by more. Hibari's sentences have texts: there it is the true growth.
Both are given, and the larger one counts.

Workload: the published Whisper tiny.en with its real weights, float32, one thread, recorded speech of a Debian package
and speech of Hibari. An encoder is timed with a whole window of thirty seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.claims import Claim, Row, print_table
from bench.in_process import one_thread
from bench.speech.recorded_speech import recorded_speech
from mstar.cli.compress.speech import Recording, speak
from mstar.models.whisper.whisper import Whisper
from mstar.nn.audio.word_errors import count_word_errors
from mstar.nn.low_rank.compress import count_parameters
from mstar.nn.weights.progress import ignore_progress
from mstar.nn.weights.sources import Weights
from mstar.requests import TranscriptionRequest

ENERGIES = (0.999, 0.99)
TARGET_SPEED, TARGET_SMALLER = 1.4, 0.4
MAX_INCREASE_PERCENT = 1.0
TIMED_RUNS = 5
SPOKEN_SHARE = 0.5
"""Minutes of Hibari's speech, relative to those of recordings."""


class Point(NamedTuple):
    """A model on the curve."""

    size: float
    """Weights of the encoder, in millions."""
    encode_ms: float
    changed_percent: float
    """Words of the recordings that the original model transcribes otherwise."""
    error_percent: float
    """Word error rate of Hibari's sentences."""


def measure_encoder(network: Any, features: Any) -> tuple[float, float]:
    """Millions of weights of an encoder, and milliseconds for a window: the best of some runs."""
    encoder = network.get_encoder()
    times = list[float]()
    for _ in range(TIMED_RUNS):
        begun = time.perf_counter()
        encoder(features)
        times.append(1000 * (time.perf_counter() - begun))
    return count_parameters(encoder) / 1e6, min(times)


def transcribe(model: Whisper, recordings: Sequence[Recording]) -> list[str]:
    """The text of each recording."""
    return [model.run(TranscriptionRequest(recording.sound)).result.text for recording in recordings]


def error_percent(references: Sequence[str], texts: Sequence[str]) -> float:
    """Word errors of all texts, in percent of the words."""
    counts = [count_word_errors(reference, text) for reference, text in zip(references, texts, strict=True)]
    return 100 * sum(errors for errors, _ in counts) / sum(words for _, words in counts)


def measure_curve(minutes: float) -> dict[float, Point]:
    """Points by share of variance; 1 is the original model. Half of the minutes calibrate."""
    recorded, spoken = recorded_speech(minutes), speak(SPOKEN_SHARE * minutes, seed=26)
    calibration = [recording.sound for recording in (*recorded[::2], *spoken[::2])]
    held_out = recorded[1::2]
    known, points = spoken[1::2], dict[float, Point]()
    original = Whisper()
    features = original.asr.mel_spectrogram(held_out[0].sound)[None]

    def point(model: Whisper, network: Any, references: Sequence[str]) -> tuple[Point, list[str]]:
        texts = transcribe(model, held_out)
        changed = error_percent(references or texts, texts)
        errors = error_percent([recording.text for recording in known], transcribe(model, known))
        return Point(*measure_encoder(network, features), changed, errors), texts

    points[1.0], references = point(original, original.asr.load_network(), ())
    print(f"original: {points[1.0]}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        for energy in ENERGIES:
            folder = Path(temporary, str(energy))
            original.asr.save_compressed(calibration, energy, folder, ignore_progress)
            weights = str(folder)
            points[energy] = point(Whisper(weights), Weights(weights).network(), references)[0]
            print(f"{energy:g} of the variance: {points[energy]}", file=sys.stderr)
    return points


def lite_asr(minutes: float = 2.0) -> Claim:
    """How much smaller and faster is the encoder at the word errors that are allowed?"""
    with one_thread():
        points = measure_curve(minutes)
    original = points.pop(1.0)
    rows = [
        Row("original: weights of the encoder", "M", [original.size]),
        Row("  a window", "ms", [original.encode_ms]),
        Row("  word errors of Hibari's sentences", "%", [original.error_percent]),
    ]
    best, best_score = min(points), 0.0
    for energy, point in points.items():
        speed, smaller = original.encode_ms / point.encode_ms, 1 - point.size / original.size
        growth = max(point.changed_percent, point.error_percent - original.error_percent)
        score = max(speed / TARGET_SPEED, smaller / TARGET_SMALLER) if growth <= MAX_INCREASE_PERCENT else 0.0
        if score > best_score:
            best, best_score = energy, score
        rows += [
            Row(f"{energy:g} of the variance: smaller by", "%", [100 * smaller]),
            Row("  a window", "ms", [point.encode_ms]),
            Row("  times as fast", "x", [speed]),
            Row("  words of recordings that changed", "%", [point.changed_percent]),
            Row("  word errors of Hibari's sentences", "%", [point.error_percent]),
        ]
    print_table(rows)
    text = (
        f"an encoder of lower rank is {TARGET_SPEED:g} times as fast or {TARGET_SMALLER:.0%} smaller, and at most "
        f"{MAX_INCREASE_PERCENT:g} % of the words change; 1 is the target"
    )
    details = {"share of variance": best, "points": {str(energy): point._asdict() for energy, point in points.items()}}
    return Claim(text, round(best_score, 3), 1.0, best_score >= 1, details)
