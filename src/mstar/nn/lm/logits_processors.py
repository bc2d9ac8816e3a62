"""Logits processors: logit bias, penalties, allowed token ranges and grammar masks of a batch, in this order.

What they read from the requests is computed on the host as arrays, which the sampler copies to the device with its
own, so that no processor copies or waits. The grammar mask is the exception: it has a row of the vocabulary per request
and is copied by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from mstar.errors import MstarError, RowsFailed
from mstar.nn.lm.grammar import Guide, compute_logit_mask
from mstar.nn.lm.sampler_state import SamplerState
from mstar.requests import BadSampling, Sampling


class LogitsProcessors:
    """The logits processors of a batch. Raises RowsFailed for rows whose parameters do not fit the vocabulary."""

    def __init__(self, size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
        self._params = params
        guides = _guides(size, params, samplers)
        self._grammar_mask = compute_logit_mask(guides, size) if guides else None
        self.arrays: list[np.ndarray] = [
            *_columns(_biases(params)),
            *_columns(_repeated_tokens(size, params, samplers)),
            *_columns(_generated_tokens(size, params, samplers)),
            np.array([*guides], np.int64),
        ]
        """What `apply` reads on the device of the scores."""

    def apply(self, scores: Tensor, arrays: Sequence[Tensor]) -> None:
        """Process the scores of all rows in place."""
        _add(scores, *arrays[0:3])
        _penalize_repetition(scores, *arrays[3:6])
        _add(scores, *arrays[6:9])
        for row, sampling in enumerate(self._params):
            if sampling.allowed_ranges:
                _mask_outside_ranges(scores[row], sampling.allowed_ranges)
        if self._grammar_mask is not None:
            scores.index_add_(0, arrays[9], self._grammar_mask.to(scores.device, non_blocking=True))


def _guides(size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> dict[int, Guide]:
    """The grammar matchers by row."""
    errors: dict[int, Exception] = {}
    guides: dict[int, Guide] = {}
    for row, (sampling, sampler) in enumerate(zip(params, samplers, strict=True)):
        try:
            if unknown := [token for token, _ in sampling.logit_bias if token >= size]:
                raise BadSampling(f"logit_bias has unknown tokens {unknown}\n  fix: use tokens below {size}")
            if sampling.grammar:
                guides[row] = sampler.guide(sampling.grammar)
        except MstarError as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    return guides


# ---------------------------------------------------------------- on the host
Entries = Iterable[tuple[int, np.ndarray, np.ndarray | float]]
"""Tokens of a row with a value for all or for each."""


def _biases(params: Sequence[Sampling]) -> Entries:
    for row, sampling in enumerate(params):
        for token, bias in sampling.logit_bias:  # a token can have several
            yield row, np.array([token]), bias


def _repeated_tokens(size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Entries:
    """All tokens of the histories, with the repetition penalty."""
    for row, (sampling, sampler) in enumerate(zip(params, samplers, strict=True)):
        if sampling.repetition_penalty != 1:
            yield row, np.unique(_tokens(sampler.history, size)), sampling.repetition_penalty


def _generated_tokens(size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Entries:
    """The generated tokens, with what presence and frequency penalty add to their logits."""
    for row, (sampling, sampler) in enumerate(zip(params, samplers, strict=True)):
        if sampling.presence_penalty or sampling.frequency_penalty:
            tokens, counts = np.unique(_tokens(sampler.generated(), size), return_counts=True)
            yield row, tokens, -(sampling.presence_penalty + sampling.frequency_penalty * counts)


def _tokens(history: Sequence[int], size: int) -> np.ndarray:
    """The tokens of a history, without content ids above the vocabulary."""
    tokens = np.array(history, np.int64)
    return tokens[tokens < size]


def _columns(entries: Entries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, tokens and values of all entries."""
    rows, tokens, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for row, row_tokens, value in entries:
        rows.append(np.full(len(row_tokens), row, np.int64))
        tokens.append(row_tokens)
        values.append(np.broadcast_to(np.asarray(value, np.float64), row_tokens.shape))
    return np.concatenate(rows), np.concatenate(tokens), np.concatenate(values)


# ---------------------------------------------------------------- on the device
def _add(scores: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> None:
    if rows.numel():
        scores.index_put_((rows, tokens), values.to(scores.dtype), accumulate=True)


def _penalize_repetition(scores: Tensor, rows: Tensor, tokens: Tensor, penalties: Tensor) -> None:
    if rows.numel():
        before, factors = scores[rows, tokens], penalties.to(scores.dtype)
        scores[rows, tokens] = torch.where(before < 0, before * factors, before / factors)


def _mask_outside_ranges(scores: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
    """Mask the tokens outside these ranges."""
    masked = 0
    for first, end in sorted(ranges):
        scores[masked:first] = -math.inf
        masked = max(masked, end)
    scores[masked:] = -math.inf
