"""Which token may follow in a transcript with moments: the rules of Whisper's authors, as transformers has them.

Needs torch, and is imported where an op runs. A token is not chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from torch import Tensor

from mstar.models.whisper.tokenizer import SpecialTokens

_END_TOLERANCE_TIMESTAMPS, _MIN_OPEN_TIMESTAMPS = 20, 50
"""With at most so many moments left a sound is over, as moments are not exact; with more than so many it is not."""


def apply_timestamp_rules(
    logits: Tensor, generated: Sequence[Sequence[int]], end_timestamps: Sequence[int | None], special: SpecialTokens
) -> Tensor:
    """Logits of [rows, tokens], which are changed, without those that may not follow what each row has said.

    It begins with a moment. Words stand between two moments, which do not go back. If it is likelier that any moment
    follows than the likeliest word, one does. Where it is known at which moment a sound ends, the text ends with it.
    """
    scores = logits.float()
    scores[:, list(special.suppressed)] = -inf
    for one, tokens, end in zip(scores, generated, end_timestamps, strict=True):
        _suppress_tokens(one, tokens, special)
        if end is not None and len(tokens) > 1 and tokens[-1] >= special.timestamp_begin:
            _suppress_near_end(one, tokens, end, special)
    is_due = scores[:, special.timestamp_begin :].logsumexp(-1) > scores[:, : special.timestamp_begin].amax(-1)
    scores[:, : special.timestamp_begin].masked_fill_(is_due[:, None], -inf)
    return scores


def _suppress_near_end(scores: Tensor, generated: Sequence[int], end_timestamp: int, special: SpecialTokens) -> None:
    """At the end nothing follows. Before it, where words are to begin, they do: nobody would hear them again."""
    left = end_timestamp - (generated[-1] - special.timestamp_begin)
    if generated[-2] >= special.timestamp_begin:
        if left > _MIN_OPEN_TIMESTAMPS:
            scores[special.end] = -inf
    elif left <= _END_TOLERANCE_TIMESTAMPS:
        scores[special.end + 1 :] = -inf


def _suppress_tokens(scores: Tensor, generated: Sequence[int], special: SpecialTokens) -> None:
    if not generated:
        scores[list(special.begin_suppressed)] = -inf
        scores[: special.timestamp_begin] = -inf
        if special.max_initial_timestamp is not None:
            scores[special.timestamp_begin + special.max_initial_timestamp + 1 :] = -inf
        return
    is_moment = generated[-1] >= special.timestamp_begin
    is_pair = is_moment and (len(generated) < 2 or generated[-2] >= special.timestamp_begin)
    if is_pair:
        scores[special.timestamp_begin :] = -inf
    elif is_moment:
        scores[: special.end] = -inf
    last = next(
        (token for token in reversed(generated) if token >= special.timestamp_begin), special.timestamp_begin - 1
    )
    scores[special.timestamp_begin : last + (is_pair or not is_moment)] = -inf
