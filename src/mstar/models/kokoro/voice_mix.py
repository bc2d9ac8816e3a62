"""Voice of a request: a voice of the checkpoint, or a weighted mix of several.

A mix is written as in Kokoro-FastAPI, `af_heart(2)+bm_george(1)`: weights are relative to each other, and 1 by default.
The style of a phrase is the weighted mean of the styles of the voices. Its phonemes are British if the voices with most
of the weight are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

MAX_MIXED_VOICES = 8
"""Maximum voices in a mix."""
_PART = re.compile(r"([^()+\s]+)(?:\((\d{1,6}(?:\.\d{1,6})?)\))?")


@dataclass(frozen=True, slots=True)
class VoiceMix:
    """Voices with their shares, which sum to 1."""

    shares: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a voice or a mix; None if it is neither."""
        parts = [_PART.fullmatch(part.strip()) for part in text.split("+", MAX_MIXED_VOICES)]
        weights = [(part[1], float(part[2] or 1)) for part in parts if part]
        total = sum(weight for _, weight in weights)
        if len(weights) != len(parts) or len(parts) > MAX_MIXED_VOICES or not total:
            return None
        return cls(tuple((name, weight / total) for name, weight in weights))

    def is_among(self, voices: Sequence[str]) -> bool:
        """Whether each of its voices is one of these."""
        return all(name in voices for name, _ in self.shares)

    @property
    def is_british(self) -> bool:
        """Whether it speaks British English: voices whose names begin with `b` do."""
        return sum(share for name, share in self.shares if name.startswith("b")) > 0.5
