"""The speech families as claims: how many times as fast they are as their references.

The headline has what a minute can hold: Orpheus with sixteen streams and Qwen3-Omni with eight. Long recordings have a
claim of their own (`longform`). Qwen3-TTS and Kokoro have figures without a bar in `rows()` of their files.
"""

from __future__ import annotations

from bench.claims import Claim
from bench.speech import orpheus, qwen3_omni
from bench.targets import TargetedMetric, claim_targets

_ORPHEUS_ROW, _OMNI_ROW = "served, all at once: ", "sound a second, served: "
ORPHEUS: dict[str, TargetedMetric] = {
    "Orpheus, 16 streams, times the reference": (lambda row: row(f"{_ORPHEUS_ROW}times as fast"), 6.0),
}
OMNI: dict[str, TargetedMetric] = {
    "Qwen3-Omni, 8 answers, times one by one": (lambda row: row(f"{_OMNI_ROW}times one by one"), 5.0),
    "Qwen3-Omni, times the reference's own batch": (lambda row: row(f"{_OMNI_ROW}times their batch"), 1.5),
    "Qwen3-Omni, real-time factor, times lower": (
        lambda row: row("seconds for a second, eight one by one") / row("seconds for a second, served"),
        2.9,
    ),
    "Qwen3-Omni, first sound, times sooner": (
        lambda row: row("first sound, one by one") / row("first sound, served"),
        10.0,
    ),
}


def speech_omni() -> Claim:
    """Both."""
    text = "Speed-up of Orpheus and Qwen3-Omni over their references, relative to its target"
    return claim_targets(text, [*orpheus.rows(), *qwen3_omni.rows()], ORPHEUS | OMNI)
