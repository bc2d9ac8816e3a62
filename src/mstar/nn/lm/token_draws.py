"""Random draws of tokens with temperature, top-k, top-p and min-p: row by row on a CPU, as a batch on other devices.

Both compute the distribution of `generate` in transformers, and draw from it by exponential races, the arithmetic of
`torch.multinomial`, with counter-based random numbers (`mstar.nn.lm.random_numbers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mstar.nn.lm.random_numbers import arrival_times
from mstar.requests import Sampling


def draw_row(scores: Tensor, params: Sampling, key: int) -> Tensor:
    """Draw one token from the scores of one row, whose temperature is not 0.

    Row by row, a CPU computes only what the parameters of the row need, and its data stays in the CPU cache.
    """
    scores = scores / params.temperature
    tokens = torch.arange(len(scores))
    if 0 < params.top_k < len(scores):
        tokens, scores = _select(scores >= scores.topk(params.top_k).values[-1], tokens, scores)
    probs = scores.softmax(-1)
    if params.top_p < 1:
        # The tokens below this bound add up to less than 1 - top_p, so they need not be sorted.
        tokens, probs = _select(probs > (1 - params.top_p) / len(probs) / 2, tokens, probs)
        order = probs.argsort(descending=True, stable=True)  # the first of equal tokens; unspecified in generate
        order = order[: int((probs[order].cumsum(0) < params.top_p).sum()) + 1]
        tokens, probs = tokens[order], probs[order]
    if params.min_p:
        tokens, probs = _select(probs >= params.min_p * probs.max(), tokens, probs)
    return tokens[_first_to_arrive(probs, arrival_times(torch.tensor(key), tokens)).argmax()]


def draw_arrays(size: int, params: Sequence[Sampling], keys: Sequence[int]) -> list[np.ndarray]:
    """What `draw_batch` reads on the device of the scores."""
    top_k = [row.top_k if 0 < row.top_k < size else size for row in params]
    columns = [[row.temperature for row in params], [row.top_p for row in params], [row.min_p for row in params]]
    return [np.array([keys, top_k], np.int64), np.array(columns, np.float64)]


def draw_batch(scores: Tensor, params: Sequence[Sampling] | None, arrays: Sequence[Tensor]) -> Tensor:
    """Draw one token for each row, as [rows], without waiting for the device; with temperature 0 the argmax.

    `params` tell what no row needs. Without them all of it is computed, whatever the arrays have.
    """
    size = scores.shape[1]
    (key, top_k), (temperature, top_p, min_p) = (array[..., None] for array in arrays)
    is_greedy = temperature == 0
    probs = scores / torch.where(is_greedy, 1.0, temperature).to(scores.dtype)
    most = size if params is None else max((row.top_k for row in params if row.top_k < size), default=0)
    if most:
        largest = probs.topk(most).values
        least = largest.gather(1, (top_k - 1).clamp(max=most - 1))
        probs = probs.masked_fill((probs < least) & (top_k < size), -math.inf)
    probs = probs.softmax(-1)
    if params is None or any(row.top_p < 1 for row in params):
        ordered, order = probs.sort(descending=True, stable=True)
        is_beyond = ordered.cumsum(-1) >= top_p.to(probs.dtype)
        is_beyond = is_beyond.roll(1, -1)
        is_beyond[:, 0] = False  # the token that crosses the bound is kept
        is_beyond &= top_p < 1
        probs = probs.masked_fill(is_beyond.scatter(1, order, is_beyond), 0.0)
    if params is None or any(row.min_p for row in params):
        probs = probs.masked_fill(probs < min_p.to(probs.dtype) * probs.amax(-1, keepdim=True), 0.0)
    drawn = _first_to_arrive(probs, arrival_times(key, torch.arange(size, device=scores.device)))
    return torch.where(is_greedy, scores, drawn).argmax(-1)


def _first_to_arrive(probs: Tensor, times: Tensor) -> Tensor:
    """Scores whose maximum is the token that arrives first."""
    return probs / times.to(probs.dtype)


def _select(mask: Tensor, *columns: Tensor) -> list[Tensor]:
    indices = mask.nonzero()[:, 0]
    return [column[indices] for column in columns]
