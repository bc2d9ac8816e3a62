"""Rules for the frames of Dia: classifier-free guidance, the end code and the delay pattern, as `generate` has them.

Imports torch, so it is imported inside ops only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mstar.models.dia.checkpoint import DELAYS


def guide(scores: Tensor, unguided: Tensor, scale: float, top_k: Sequence[int]) -> Tensor:
    """Scores of the codes that are most likely with guidance; all guided scores for rows with a `top_k` of 0.

    All are [rows, channels, codes]. The `top_k` codes are those with the highest guided scores, but they are sampled
    with the scores that have no guidance.
    """
    if len({*top_k}) > 1:
        rows = zip(scores.split(1), unguided.split(1), top_k, strict=True)
        return torch.cat([guide(row, other, scale, [count]) for row, other, count in rows])
    guided = scores + (scores - unguided) * scale
    if not top_k[0]:
        return guided
    likely = guided.topk(min(top_k[0], guided.shape[2])).indices
    is_removed = torch.ones_like(guided, dtype=torch.bool).scatter_(2, likely, value=False)
    return scores.masked_fill(is_removed, -math.inf)


def restrict_codes(scores: Tensor, end: int) -> Tensor:
    """Remove the codes that a channel cannot have: special ones, and the end code unless it is the most likely one.

    Only the first channel can have it, and then it has no other code.
    """
    scores = scores.clone()
    scores[:, 1:, end:] = -math.inf
    scores[:, 0, end + 1 :] = -math.inf
    first = scores[:, 0]
    is_end = (first.argmax(1) == end)[:, None]
    is_end_code = torch.arange(scores.shape[2], device=scores.device) == end
    scores[:, 0] = first.masked_fill(is_end != is_end_code, -math.inf)
    return scores


def apply_delays(codes: Tensor, position: int, ended: int, special: tuple[int, int, int]) -> None:
    """Replace sampled codes of a frame, in place on the host, by those that the delays determine.

    A channel has the start code up to its delay. `ended` is the position of the end code of the first channel, or -1;
    the others have theirs after their delay, and then padding. `special` are start, end and padding code.
    """
    start, end, padding = special
    for channel, delay in enumerate(DELAYS):
        if position <= delay:
            codes[channel] = start
        elif ended >= 0 and position >= ended + delay:
            codes[channel] = end if position == ended + delay else padding
