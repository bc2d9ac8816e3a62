"""Held-out figures of the shipped turn detector, measured through the component that is served.

Decisions are those of `mstar.server.realtime.semantic_turns`: after a pause, the turn has ended if it is more likely to
have ended than to continue; while the assistant speaks, speech is ignored if it is most likely a backchannel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mstar.models.turn_detector.features import RATE_HZ
from mstar.models.turn_detector.network import CLASSES
from mstar.models.turn_detector.turn_detector import TurnClassifier
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput
from tools.turn_detector.clips import BACKCHANNEL, CONTINUES, END_OF_TURN, Clip, make_clips
from tools.turn_detector.recordings import SEED, engines, load_recordings
from tools.turn_detector.sentences import NEW_BACKCHANNELS

SESSION_RATE_HZ = 24_000


def held_out_clips() -> list[Clip]:
    """The examples of the test split."""
    return [
        clip
        for engine in engines("test")
        for clip in make_clips(load_recordings("test", engine), 1, f"{SEED} test {engine}")
    ]


def evaluate() -> str:
    """Print and return the figures as Markdown."""
    classifier, clips, seconds = TurnClassifier(), held_out_clips(), list[float]()
    classifier.prepare()
    probabilities = list[tuple[float, float, float]]()
    for clip in clips:
        audio = AudioInput(resample(clip.samples, RATE_HZ, SESSION_RATE_HZ), SESSION_RATE_HZ)
        started = time.process_time()
        made = classifier.predict(audio)
        seconds.append(time.process_time() - started)
        probabilities.append((made.continues, made.end_of_turn, made.backchannel))
    text = _format(clips, np.array(probabilities), np.array(seconds))
    print(text)
    return text


def _format(clips: Sequence[Clip], probabilities: Any, seconds: Any) -> str:
    predicted, labels = probabilities.argmax(axis=1), np.array([clip.label for clip in clips])
    ends, is_onset = probabilities[:, CONTINUES] < 0.5, np.array([clip.is_onset for clip in clips])
    new = np.array([clip.recording.line.text in NEW_BACKCHANNELS.split("|") for clip in clips])
    short = np.array([clip.recording.line.kind == "short" for clip in clips])
    kokoro = np.array([clip.recording.voice[2] == "_" for clip in clips])
    rows = [("all voices", labels >= 0), ("Kokoro", kokoro), ("eSpeak NG", ~kokoro)]
    lines = ["| figure | " + " | ".join(name for name, _ in rows) + " |", "|---|" + "---|" * len(rows)]
    for title, figure in _figures(labels, predicted, ends, (is_onset, new, short)).items():
        lines.append(f"| {title} | " + " | ".join(figure(where) for _, where in rows) + " |")
    lines += ["", "| is \\ predicted | " + " | ".join(CLASSES) + " |", "|---|" + "---|" * len(CLASSES)]
    for label, name in enumerate(CLASSES):
        counts = np.bincount(predicted[labels == label], minlength=len(CLASSES))
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    p50, p95 = 1000 * np.quantile(seconds, (0.5, 0.95))
    return "\n".join([*lines, "", f"CPU time per decision: median {p50:.1f} ms, p95 {p95:.1f} ms"])


def _figures(labels: Any, predicted: Any, ends: Any, kinds: tuple[Any, Any, Any]) -> dict[str, Callable[[Any], str]]:
    """Figures of a subset of the examples, by their titles."""
    is_onset, new, short = kinds
    pause, is_backchannel = ~is_onset & (labels != BACKCHANNEL), labels == BACKCHANNEL
    stops = predicted != BACKCHANNEL

    def share(values: Any, subset: Any) -> str:
        return f"{100 * values[subset].mean():.1f} %" if subset.any() else "-"

    def f1(where: Any) -> str:
        made, right = ends[where & pause], labels[where & pause] == END_OF_TURN
        return f"{2 * (made & right).sum() / (made.sum() + right.sum()):.3f}"

    return {
        "examples": lambda where: str(int(where.sum())),
        "end-of-turn F1, after a pause": f1,
        "pauses taken for an end": lambda where: share(ends, where & pause & (labels == CONTINUES)),
        "ends taken for a pause": lambda where: share(~ends, where & pause & (labels == END_OF_TURN)),
        "backchannels that stop the answer": lambda where: share(stops, where & is_backchannel),
        "of these, words not trained on": lambda where: share(stops, where & is_backchannel & new),
        "interruptions taken for a backchannel": lambda where: share(~stops, where & ~is_backchannel),
        "of these, half a second of a sentence": lambda where: share(~stops, where & (labels == CONTINUES) & is_onset),
        "of these, short turns": lambda where: share(~stops, where & short),
    }
