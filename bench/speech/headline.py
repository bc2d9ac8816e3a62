"""The speech families as claims: how many times as fast they are as their references.

`speech-omni` is the short form, for a minute: Orpheus with four of sixteen references timed, and one round of
Qwen3-Omni without the queue of eight. `orpheus` and `qwen3-omni` are the long forms: all references timed, all
baselines, more rounds, and a wider network. Long recordings have a claim of their own (`longform`). Qwen3-TTS and
Kokoro have figures without a target in `rows()` of their files.
"""

from __future__ import annotations

from bench.claims import Claim
from bench.speech import orpheus, qwen3_omni
from bench.targets import Metric, TargetedMetric, claim_targets

_SERVED = "served, 8 at once"
_THEIRS = "times better than transformers"
ORPHEUS: dict[str, TargetedMetric] = {
    "Orpheus, 16 streams, times one by one": (lambda row: row("served, all at once: times one by one"), 6.0),
}
ORPHEUS_BATCH: dict[str, Metric] = {
    "Orpheus, 16 streams, times their batch": lambda row: row("served, all at once: times their batch"),
}
ORPHEUS_WIDE: dict[str, Metric] = {
    "Orpheus, width 1024, times one by one": lambda row: row("served, all at once, width 1024: times one by one"),
    "Orpheus, width 1024, times their batch": lambda row: row("served, all at once, width 1024: times their batch"),
}
OMNI: dict[str, TargetedMetric] = {
    "Qwen3-Omni, audio per second of 8 at once, times one request alone": (
        lambda row: row(f"audio per second, {_SERVED}: {_THEIRS}, one request alone"),
        5.0,
    ),
    "Qwen3-Omni, audio per second of 8 at once, times their batch": (
        lambda row: row(f"audio per second, {_SERVED}: {_THEIRS}, batch of 8"),
        1.5,
    ),
    "Qwen3-Omni, real-time factor of 8 at once, times lower than one request alone": (
        lambda row: row(f"real-time factor, {_SERVED}: {_THEIRS}, one request alone"),
        2.9,
    ),
    "Qwen3-Omni, first audio of 8 at once, times sooner than one request alone": (
        lambda row: row(f"time to first audio, {_SERVED}: {_THEIRS}, one request alone"),
        10.0,
    ),
}
OMNI_QUEUE: dict[str, TargetedMetric] = {
    "Qwen3-Omni, audio per second of 8 at once, times their queue of 8": (
        lambda row: row(f"audio per second, {_SERVED}: {_THEIRS}, queue of 8"),
        5.0,
    ),
    "Qwen3-Omni, real-time factor of 8 at once, times lower than their queue of 8": (
        lambda row: row(f"real-time factor, {_SERVED}: {_THEIRS}, queue of 8"),
        2.9,
    ),
    "Qwen3-Omni, first audio of 8 at once, times sooner than their queue of 8": (
        lambda row: row(f"time to first audio, {_SERVED}: {_THEIRS}, queue of 8"),
        10.0,
    ),
}
OMNI_ALONE: dict[str, Metric] = {
    "Qwen3-Omni, real-time factor, one served alone, times lower than one alone": (
        lambda row: row(f"real-time factor, served, one request alone: {_THEIRS}, one request alone")
    ),
    "Qwen3-Omni, first audio, one served alone, times sooner than one alone": (
        lambda row: row(f"time to first audio, served, one request alone: {_THEIRS}, one request alone")
    ),
}
OMNI_WIDE: dict[str, Metric] = {
    "Qwen3-Omni, width 512, audio per second of 8 at once, times their batch": (
        lambda row: row(f"audio per second, {_SERVED}, width 512: {_THEIRS}, batch of 8")
    ),
    "Qwen3-Omni, width 512, first audio of 8 at once, times sooner than one request alone": (
        lambda row: row(f"time to first audio, {_SERVED}, width 512: {_THEIRS}, one request alone")
    ),
}


def speech_omni() -> Claim:
    """Both, in the short form."""
    text = "Speed-up of Orpheus and Qwen3-Omni over transformers, relative to its target (short form)"
    rows = [*orpheus.rows(is_long=False), *qwen3_omni.rows(is_long=False)]
    return claim_targets(text, rows, ORPHEUS | OMNI, ORPHEUS_BATCH | OMNI_ALONE)


def orpheus_claim() -> Claim:
    """Orpheus, with all references timed and a wider network."""
    text = "Speed-up of Orpheus over transformers and snac, relative to its target"
    return claim_targets(text, orpheus.rows(), ORPHEUS, ORPHEUS_BATCH | ORPHEUS_WIDE)


def omni_claim() -> Claim:
    """Qwen3-Omni against one request alone, a measured queue and a batch, and with a wider network."""
    text = "Speed-up of Qwen3-Omni over transformers, relative to its target"
    return claim_targets(text, qwen3_omni.rows(), OMNI | OMNI_QUEUE, OMNI_ALONE | OMNI_WIDE)
