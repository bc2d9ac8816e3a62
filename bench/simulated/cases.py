"""Cases of the comparison: models with their published weights, their requests, and two placements of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.deadlines.traffic import SENTENCES
from mstar.cli.bench.records import SloTarget

ROOT = Path(__file__).parents[2]
LOADS = (0.3, 0.5, 0.7)
"""Arrival rates, relative to what the workers of the placement can do by the profile."""


@dataclass(frozen=True)
class ModelCase:
    """A model, the lines of its requests file, the SLO of its traffic, and its placements."""

    target: str
    kind: str
    requests: tuple[Mapping[str, object], ...]
    slo: SloTarget
    placements: tuple[str, ...]

    def write_requests(self, folder: Path) -> Path:
        """Write the file for `mstar profile --requests`."""
        path = folder / "requests.jsonl"
        path.write_text("\n".join(json.dumps({"kind": self.kind, **fields}) for fields in self.requests))
        return path


def _placements(*components: str) -> tuple[str, str]:
    """One worker, and two replicas with all components."""
    return tuple("[place]\n" + "".join(f"{name} = {workers}\n" for name in components) for workers in _WORKERS)  # pyright: ignore[reportReturnType]


_WORKERS = ('"a"', '["a", "b"]')
CASES = (
    ModelCase(
        "hibari",
        "speech",
        tuple(
            {"text": " ".join(SENTENCES[number] for number in numbers)}
            for numbers in ((0, 1), (4,), (3, 6, 7), (2, 5, 9, 8))
        ),
        SloTarget(ttft=0.5, continuity=0.05),
        _placements("tts"),
    ),
    ModelCase(
        "smollm2",
        "chat",
        tuple(
            {"text": text, "max_tokens": tokens}
            for text, tokens in zip(SENTENCES[1:7], (16, 32, 48, 16, 24, 64), strict=True)
        ),
        SloTarget(ttft=0.5, itl=0.1),
        _placements("lm"),
    ),
    ModelCase(
        "whisper",
        "transcriptions",
        tuple({"audio": str(ROOT / path)} for path in ("examples/question.wav", "docs/sounds/fox.wav")),
        SloTarget(total=2.0),
        _placements("asr", "merger"),
    ),
)
