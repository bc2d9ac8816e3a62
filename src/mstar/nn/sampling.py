"""Choosing the next token: what a request wishes, and the choice for a whole batch of wishes at once.

The rules and their order are those of transformers' `generate`, so that the same wishes and seed give the same tokens.
`Sampling` is for model files, which import without torch; the choice itself runs where the network is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor


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
    seed: int = 0


def choose_tokens(
    logits: Tensor, wishes: Sequence[Sampling], histories: Sequence[list[int]], generators: Sequence[Generator]
) -> Tensor:
    """One token for each row of logits, as [rows, 1]."""
    import torch

    scores = _penalised(logits.float(), wishes, histories)
    chosen = scores.argmax(-1, keepdim=True)
    sampled = [row for row, wish in enumerate(wishes) if wish.temperature > 0]
    if sampled:
        kept = _likely(scores[sampled], [wishes[row] for row in sampled]).softmax(-1)
        for row, probabilities in zip(sampled, kept, strict=True):
            chosen[row] = torch.multinomial(probabilities, 1, generator=generators[row])
    return chosen


def _penalised(scores: Tensor, wishes: Sequence[Sampling], histories: Sequence[list[int]]) -> Tensor:
    """Scores with what was said before made less likely."""
    import torch

    rows = [row for row, wish in enumerate(wishes) if wish.repetition_penalty != 1]
    if not rows:
        return scores
    said = torch.zeros_like(scores, dtype=torch.bool)
    for row in rows:
        said[row, histories[row]] = True
    factor = _column(scores, [wish.repetition_penalty for wish in wishes])
    return torch.where(said, torch.where(scores < 0, scores * factor, scores / factor), scores)


def _likely(scores: Tensor, wishes: Sequence[Sampling]) -> Tensor:
    """Scores at each row's temperature, with minus infinity for what it does not want to choose from."""
    import torch

    none = float("-inf")
    scores = scores / _column(scores, [wish.temperature for wish in wishes])
    if any(wish.top_k for wish in wishes):
        size = scores.shape[-1]
        ranks = torch.tensor([[min(wish.top_k or size, size) - 1] for wish in wishes])
        least = scores.sort(descending=True).values.gather(1, ranks)
        scores = scores.masked_fill(scores < least, none)
    if any(wish.top_p < 1 for wish in wishes):
        ordered, places = scores.sort()
        unlikely = ordered.softmax(-1).cumsum(-1) <= _column(scores, [1 - wish.top_p for wish in wishes])
        unlikely &= _column(scores, [wish.top_p for wish in wishes]) < 1
        unlikely[:, -1] = False
        scores = scores.masked_fill(unlikely.scatter(1, places, unlikely), none)
    if any(wish.min_p for wish in wishes):
        probabilities = scores.softmax(-1)
        least = probabilities.amax(-1, keepdim=True) * _column(scores, [wish.min_p for wish in wishes])
        scores = scores.masked_fill(probabilities < least, none)
    return scores


def _column(like: Tensor, numbers: list[float]) -> Tensor:
    return like.new_tensor(numbers)[:, None]
