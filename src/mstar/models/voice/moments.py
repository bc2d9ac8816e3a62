"""Which token may follow in a transcript with moments: the rules of Whisper's authors, as transformers has them.

Needs torch, and is imported where an op runs. A token is not chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from torch import Tensor

from mstar.models.voice.words import Marks

_NEAR, _FAR = 20, 50
"""With at most so many moments left a sound is over, as moments are not exact; with more than so many it is not."""


def ruled(logits: Tensor, said: Sequence[Sequence[int]], ends: Sequence[int | None], marks: Marks) -> Tensor:
    """Logits of [rows, tokens], which are changed, without those that may not follow what each row has said.

    It begins with a moment. Words stand between two moments, which do not go back. If it is likelier that any moment
    follows than the likeliest word, one does. Where it is known at which moment a sound ends, the text ends with it.
    """
    scores = logits.float()
    scores[:, list(marks.never)] = -inf
    for one, tokens, end in zip(scores, said, ends, strict=True):
        _bar(one, tokens, marks)
        if end is not None and len(tokens) > 1 and tokens[-1] >= marks.zero:
            _bar_end(one, tokens, end, marks)
    is_due = scores[:, marks.zero :].logsumexp(-1) > scores[:, : marks.zero].amax(-1)
    scores[:, : marks.zero].masked_fill_(is_due[:, None], -inf)
    return scores


def _bar_end(scores: Tensor, said: Sequence[int], end: int, marks: Marks) -> None:
    """At the end nothing follows. Before it, where words are to begin, they do: nobody would hear them again."""
    left = end - (said[-1] - marks.zero)
    if said[-2] >= marks.zero:
        if left > _FAR:
            scores[marks.end] = -inf
    elif left <= _NEAR:
        scores[marks.end + 1 :] = -inf


def _bar(scores: Tensor, said: Sequence[int], marks: Marks) -> None:
    if not said:
        scores[list(marks.not_first)] = -inf
        scores[: marks.zero] = -inf
        if marks.latest_first is not None:
            scores[marks.zero + marks.latest_first + 1 :] = -inf
        return
    is_moment = said[-1] >= marks.zero
    is_pair = is_moment and (len(said) < 2 or said[-2] >= marks.zero)
    if is_pair:
        scores[marks.zero :] = -inf
    elif is_moment:
        scores[: marks.end] = -inf
    last = next((token for token in reversed(said) if token >= marks.zero), marks.zero - 1)
    scores[marks.zero : last + (is_pair or not is_moment)] = -inf
