"""The speech families as claims: how many times as fast they are as their references.

`speech-omni` is the short form, for a minute: Orpheus with four of sixteen references timed, and one round of
Qwen3-Omni at width 128 without the queue of eight. `orpheus` and `qwen3-omni` are the long forms: all references timed,
all baselines, and a wider network, which has the targets of Qwen3-Omni. Long recordings have a claim of their own
(`longform`). Qwen3-TTS and Kokoro have figures without a target in `rows()` of their files.
"""

from __future__ import annotations

from bench.claims import Claim
from bench.speech import orpheus, qwen3_omni
from bench.targets import Metric, TargetedMetric, claim_targets

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


def omni_targets(width: str, baseline: str) -> dict[str, TargetedMetric]:
    """Throughput and latency of eight requests at once against a baseline, with the same targets for each."""
    served = f"served, 8 at once{width}: times better than transformers, {baseline}"
    what = f"of 8 at once{width}, times better than {baseline}"
    return {
        f"Qwen3-Omni, audio per second {what}": (lambda row: row(f"audio per second, {served}"), 5.0),
        f"Qwen3-Omni, real-time factor {what}": (lambda row: row(f"real-time factor, {served}"), 2.9),
        f"Qwen3-Omni, first audio {what}": (lambda row: row(f"time to first audio, {served}"), 10.0),
    }


def omni_batch(width: str) -> dict[str, TargetedMetric]:
    """Throughput against a batch of the reference."""
    served = f"served, 8 at once{width}: times better than transformers, batch of 8"
    name = f"Qwen3-Omni, audio per second of 8 at once{width}, times better than batch of 8"
    return {name: (lambda row: row(f"audio per second, {served}"), 1.5)}


def omni_alone(width: str) -> dict[str, Metric]:
    """Latency of one request served alone against one request alone."""
    served = f"served, one request alone{width}: times better than transformers, one request alone"
    what = f"of one request alone{width}, times better than one request alone"
    return {
        f"Qwen3-Omni, real-time factor {what}": lambda row: row(f"real-time factor, {served}"),
        f"Qwen3-Omni, first audio {what}": lambda row: row(f"time to first audio, {served}"),
    }


_WIDE = f", width {qwen3_omni.WIDE}"
OMNI = omni_targets("", "one request alone") | omni_batch("")
OMNI_ALONE = omni_alone("")
OMNI_WIDE = omni_targets(_WIDE, "one request alone") | omni_targets(_WIDE, "queue of 8") | omni_batch(_WIDE)
OMNI_BESIDE: dict[str, Metric] = omni_alone(_WIDE) | {name: read for name, (read, _) in OMNI.items()}
"""Figures of the long form without a target: one request alone, and the small network of the short form."""


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
    return claim_targets(text, qwen3_omni.rows(), OMNI_WIDE, OMNI_BESIDE)
