"""What a request wishes of the tokens that are chosen for it. The choice itself is in `mstar.nn.lm.sampler`.

This is for model files and servers, so it needs no library. A wish that cannot be is refused here, where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mstar.errors import MstarError
from mstar.nn.lm.grammar import Grammar


class BadSampling(MstarError, ValueError):
    """A wish is out of range."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request wants its tokens chosen. The defaults take the likeliest one each time."""

    max_tokens: int = 256
    temperature: float = 0.0
    """How far to stray from the likeliest token; 0 is not at all."""
    top_k: int = 0
    """Choose among so many of the likeliest; 0 is all."""
    top_p: float = 1.0
    """Choose among the likeliest that together have this probability."""
    min_p: float = 0.0
    """Choose among those at least this likely, compared to the likeliest."""
    repetition_penalty: float = 1.0
    """Make every token that was read or written less likely by this factor."""
    presence_penalty: float = 0.0
    """Lower the score of every token that was written by so much."""
    frequency_penalty: float = 0.0
    """Lower the score of every token by so much for each time it was written."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Raise the scores of these tokens by so much."""
    allowed_ranges: tuple[tuple[int, int], ...] = ()
    """Choose among the tokens of these ranges only, each from its first number up to before its second."""
    grammar: Grammar | None = None
    """What the text must look like."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the text, besides those of the model."""
    stop_strings: tuple[str, ...] = ()
    """What ends the text where it is written."""
    logprobs: int | None = None
    """Tell how likely each token was, and so many of the likeliest in its place."""
    seed: int = 0

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _VALID_RANGES}
        if wrong := [name for name, (fits, _) in _VALID_RANGES.items() if not fits(values[name])]:
            what = ", ".join(f"{name} is {values[name]!r}" for name in wrong)
            fix = "; ".join(f"{name} must be {_VALID_RANGES[name][1]}" for name in wrong)
            raise BadSampling(f"{what}\n  fix: {fix}")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token of all is what it wants."""
        return not (
            self.temperature
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.allowed_ranges
            or self.grammar
            or self.repetition_penalty != 1
        )


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How likely a token was, as the model sees it: before any penalty, bias, temperature or grammar."""

    token_logprob: float
    top_logprobs: tuple[tuple[int, float], ...]
    """The likeliest tokens in its place, and how likely each was."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token and how likely it was: what a Text emission holds where that is wished for."""

    token: int
    logprobs: Logprobs


_VALID_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda value: value >= 1, "1 or more"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 or more"),
    "top_k": (lambda value: value >= 0, "0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "logit_bias": (
        lambda value: all(token >= 0 and math.isfinite(bias) for token, bias in value),
        "pairs of a token, 0 or more, and a finite number",
    ),
    "allowed_ranges": (
        lambda value: all(0 <= first < end for first, end in value),
        "ranges of tokens, none of them empty",
    ),
    "stop_token_ids": (lambda value: all(token >= 0 for token in value), "tokens, 0 or more"),
    "stop_strings": (all, "texts, none of them empty"),
    "logprobs": (lambda value: value is None or value >= 0, "None, or 0 or more"),
    "seed": (lambda value: -(2**63) <= value < 2**64, "a number of 64 bits"),
}
"""For each wish, what it may be, and how to say so."""
