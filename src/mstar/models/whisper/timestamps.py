"""Timestamp rules of Whisper decoding: a logits processor equal to the one of transformers.

It masks tokens that break the order of timestamps. Sampling is in `nn.lm.sampler`. Imports torch, so it is imported
inside ops only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from mstar.models.whisper.tokenizer import SpecialTokens

_END_TOLERANCE_TIMESTAMPS = 20
"""Remaining timestamps at which the audio counts as finished, because timestamps are inexact."""
_MIN_OPEN_TIMESTAMPS = 50
"""Remaining timestamps above which the transcript must not end."""


def apply_timestamp_rules(
    logits: Tensor, generated: Sequence[Sequence[int]], end_timestamps: Sequence[int | None], special: SpecialTokens
) -> Tensor:
    """Mask, in place, the logits [rows, tokens] of tokens that cannot follow what each row has generated.

    1. A transcript starts with a timestamp.
    2. Text stands between two timestamps, which never decrease.
    3. If all timestamps together are likelier than the likeliest text token, a timestamp follows.
    4. If the end of the audio is known, the transcript ends with it.
    """
    scores = logits.float()
    scores[:, _indices(special.suppressed, scores.device)] = -inf
    for row_scores, tokens, end in zip(scores, generated, end_timestamps, strict=True):
        _suppress_tokens(row_scores, tokens, special)
        if end is not None and len(tokens) > 1 and tokens[-1] >= special.timestamp_begin:
            _suppress_near_end(row_scores, tokens, end, special)
    is_due = scores[:, special.timestamp_begin :].logsumexp(-1) > scores[:, : special.timestamp_begin].amax(-1)
    scores[:, : special.timestamp_begin].masked_fill_(is_due[:, None], -inf)
    return scores


@functools.lru_cache(maxsize=16)
def _indices(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Token ids on the device of the scores, where a list would be copied in every step."""
    return torch.tensor(tokens, dtype=torch.int64, device=device)


def _suppress_near_end(scores: Tensor, generated: Sequence[int], end_timestamp: int, special: SpecialTokens) -> None:
    """End the transcript near the end of the audio, and prevent it from ending much earlier."""
    left = end_timestamp - (generated[-1] - special.timestamp_begin)
    if generated[-2] >= special.timestamp_begin:
        if left > _MIN_OPEN_TIMESTAMPS:
            scores[special.end] = -inf
    elif left <= _END_TOLERANCE_TIMESTAMPS:
        scores[special.end + 1 :] = -inf


def _suppress_tokens(scores: Tensor, generated: Sequence[int], special: SpecialTokens) -> None:
    if not generated:
        scores[_indices(special.begin_suppressed, scores.device)] = -inf
        scores[: special.timestamp_begin] = -inf
        if special.max_initial_timestamp is not None:
            scores[special.timestamp_begin + special.max_initial_timestamp + 1 :] = -inf
        return
    is_timestamp = generated[-1] >= special.timestamp_begin
    is_pair = is_timestamp and (len(generated) < 2 or generated[-2] >= special.timestamp_begin)
    if is_pair:
        scores[special.timestamp_begin :] = -inf
    elif is_timestamp:
        scores[: special.end] = -inf
    last = next(
        (token for token in reversed(generated) if token >= special.timestamp_begin), special.timestamp_begin - 1
    )
    scores[special.timestamp_begin : last + (is_pair or not is_timestamp)] = -inf
