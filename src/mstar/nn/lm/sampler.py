"""Sampler: the next tokens of a batch of requests with different sampling parameters.

Per row: logits processors (`mstar.nn.lm.logits_processors`), temperature, top-k, top-p and min-p, a random draw
(`mstar.nn.lm.token_draws`). The order and the arithmetic are those of `generate` in transformers, so equal parameters
and equal random numbers give equal tokens. Greedy rows cost one argmax.

Tokens come back to the host, because the walk, the history and the client need them there; with them comes what tells
whether a row failed, so that a step waits for its device once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mstar.errors import NotFinite, RowsFailed
from mstar.nn import native
from mstar.nn.lm.draw_choice import choose_draws
from mstar.nn.lm.logits_processors import LogitsProcessors
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.token_draws import draw_arrays, draw_row
from mstar.nn.staging import to_device
from mstar.requests import BadSampling, Logprobs, Sampling
from mstar.walk.batching import failures_of

_NOT_FINITE_FIX = "look for an overflow of the network's dtype, and for damaged weights"
_NO_TOKEN_FIX = "use smaller penalties and biases"


def sample_tokens(logits: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Tensor:
    """Sample one token per row of logits, as [rows, 1] on the host.

    Raises RowsFailed for rows that fail; the caller must then roll back all samplers of the batch.
    """
    for sampler in samplers:
        if sampler.prompt_length is None:
            sampler.start_generation()
    rows = [row for row, sampling in enumerate(params) if not sampling.is_greedy]
    row_params, row_samplers = [params[row] for row in rows], [samplers[row] for row in rows]
    with failures_of(rows):
        processors = LogitsProcessors(logits.shape[1], row_params, row_samplers) if rows else None
    keys = [
        sampler.next_draw(sampling.seed) if sampling.temperature else 0
        for sampling, sampler in zip(row_params, row_samplers, strict=True)
    ]
    sample = _sample_on_cpu if logits.device.type == "cpu" else _sample_on_device
    return sample(logits, rows, processors, row_params, keys)


def _sample_on_cpu(
    logits: Tensor,
    rows: list[int],
    processors: LogitsProcessors | None,
    params: Sequence[Sampling],
    keys: Sequence[int],
) -> Tensor:
    """The argmax of the logits; for `rows`, a draw or the argmax of the processed logits."""
    sampled, is_finite = _argmax(logits)
    if not is_finite:
        raise _not_finite(logits.gather(1, sampled)[:, 0].tolist())
    if processors is not None:
        scores = logits[rows].float()
        processors.apply(scores, to_device(processors.arrays, scores.device))
        tokens, is_finite = _argmax(scores)
        if not is_finite:
            raise _no_token(scores.gather(1, tokens)[:, 0].tolist(), rows)
        for index, (sampling, key) in enumerate(zip(params, keys, strict=True)):
            if sampling.temperature:
                tokens[index] = draw_row(scores[index], sampling, key)
        sampled[rows] = tokens
    return sampled


def _sample_on_device(
    logits: Tensor,
    rows: list[int],
    processors: LogitsProcessors | None,
    params: Sequence[Sampling],
    keys: Sequence[int],
) -> Tensor:
    """The same with one copy to the device and one to the host, in float64, which represents all of it exactly."""
    largest, sampled = logits.max(-1)
    parts = [sampled.double(), largest.double()]
    if processors is not None:
        draws = draw_arrays(logits.shape[1], params, keys)
        index, *arrays = to_device([rows, *processors.arrays, *draws], logits.device)
        scores = logits[index].float()
        processors.apply(scores, arrays[: -len(draws)])
        tokens = choose_draws(logits.device)(scores, params, arrays[-len(draws) :])
        parts += [tokens.double(), scores.amax(-1).double()]
    return read_tokens(torch.cat(parts).cpu().split([len(part) for part in parts]), rows)


def read_tokens(parts: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
    """Tokens as [rows, 1]: the argmax of the logits, and for `rows` the third part. Raises RowsFailed.

    The parts are on the host: argmax and maximum of the logits of all rows, tokens and largest scores of `rows`.
    """
    chosen, largest_logits, *others = parts
    if not largest_logits.isfinite().all():
        raise _not_finite(largest_logits.tolist())
    sampled = chosen.long()[:, None]
    if others:
        tokens, largest_scores = others
        if not largest_scores.isfinite().all():
            raise _no_token(largest_scores.tolist(), rows)
        sampled[rows] = tokens.long()[:, None]
    return sampled


def _not_finite(largest: Sequence[float]) -> RowsFailed:
    """The error of rows whose largest logit is not finite."""
    return RowsFailed(
        {
            row: NotFinite(f"the largest logit is {value}\n  fix: {_NOT_FINITE_FIX}")
            for row, value in enumerate(largest)
            if not math.isfinite(value)
        }
    )


def _no_token(largest: Sequence[float], rows: Sequence[int]) -> RowsFailed:
    """The error of rows without any token that can be sampled."""
    failed = [row for row, value in zip(rows, largest, strict=True) if not math.isfinite(value)]
    return RowsFailed(
        {row: BadSampling(f"the sampling parameters exclude every token\n  fix: {_NO_TOKEN_FIX}") for row in failed}
    )


def _argmax(scores: Tensor) -> tuple[Tensor, bool]:
    """The first maximum, or NaN, of each row, as [rows, 1]; and whether all of them are finite."""
    if native.is_native(scores.dtype, scores.device) and scores.stride(1) == 1:
        return native.argmax(scores)  # ten times as fast as torch.argmax, which is not vectorized
    tokens = scores.argmax(-1, keepdim=True)
    return tokens, bool(scores.gather(1, tokens).isfinite().all())


def compute_logprobs(logits: Tensor, params: Sequence[Sampling], tokens: Tensor) -> list[Logprobs | None]:
    """Logprobs of the sampled tokens, [rows, 1] on the host, for the rows that set `logprobs`."""
    logprobs: list[Logprobs | None] = [None] * len(params)
    rows = [row for row, sampling in enumerate(params) if sampling.logprobs is not None]
    if not rows:
        return logprobs
    most = min(max(params[row].logprobs or 0 for row in rows), logits.shape[1])
    index, chosen = to_device([rows, tokens[rows].numpy()], logits.device)
    logs = logits[index].float().log_softmax(-1)
    top = logs.topk(most)
    table = torch.cat([logs.gather(1, chosen), top.values, top.indices.to(torch.float64)], 1).cpu()
    for row, (own, *others) in zip(rows, table.tolist(), strict=True):
        count = min(params[row].logprobs or 0, most)
        pairs = zip(map(int, others[most : most + count]), others[:count], strict=True)
        logprobs[row] = Logprobs(own, tuple(pairs))
    return logprobs
