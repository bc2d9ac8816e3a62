"""Sampling inside a captured graph: the parameters of a batch in arrays of a fixed size, and the draws that read them.

| inside the graph | outside, after it |
|---|---|
| greedy rows; temperature, top-k, top-p, min-p and seed; up to 8192 repetition, 8192 presence and frequency penalties \
and 8192 logit biases of the batch | batches with a grammar, with allowed ranges of tokens, or with more penalties; \
logprobs |

Greedy batches have a graph without draws. Nothing in a graph depends on the parameters but their arrays, so every draw
computes all of top-k, top-p and min-p. Penalties are padded with entries of a row after the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mstar.nn.lm.draw_choice import choose_draws
from mstar.nn.lm.logits_processors import LogitsProcessors
from mstar.nn.lm.random_numbers import draw_keys, hash_seeds
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.token_draws import draw_arrays
from mstar.requests import Sampling

MAX_ENTRIES = 8192
"""Maximum number of penalties and biases, of each kind, of a batch that is sampled inside a graph."""
ENTRY_COUNTS = (0, 64, 1024, MAX_ENTRIES)
"""Numbers of penalties and biases, of each kind, that a graph has room for."""
GREEDY = -1
"""Instead of such a number: no row is drawn or has a penalty."""
_ENTRY_KINDS = 3
"""Logit biases, repetition penalties, and presence with frequency penalties; each has rows, tokens and values."""


class CapturedSampling:
    """Sampling parameters of the rows of a batch, with `entries` penalties and biases of each kind, or GREEDY."""

    def __init__(self, size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
        self._size, self._params, self._samplers = size, params, samplers
        self.entries: int = GREEDY
        self.rows = [row for row, sampling in enumerate(params) if not sampling.is_greedy]
        """Rows that are not the argmax of the logits."""
        self._hashed_seeds = hash_seeds([sampling.seed for sampling in params])
        self._columns: list[np.ndarray] = []
        self._draw_arrays: list[np.ndarray] | None = None

    @classmethod
    def create(cls, size: int, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Self | None:
        """Sampling from logits of this size; None if a graph cannot hold it. Raises RowsFailed."""
        made = cls(size, params, samplers)
        if any(params[row].grammar or params[row].allowed_ranges for row in made.rows):
            return None
        for sampler in samplers:
            if sampler.prompt_length is None:
                sampler.start_generation()
        if made.rows:
            made._columns = LogitsProcessors(size, params, samplers).arrays[: 3 * _ENTRY_KINDS]
            most = max(map(len, made._columns))
            if most > ENTRY_COUNTS[-1]:
                return None
            made.entries = next(count for count in ENTRY_COUNTS if count >= most)
        return made

    def continue_with(self, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> bool:
        """Use it for the next step of other samplers, if the parameters are the same and none depends on a history."""
        is_same = self._params == params  # fast: they are the same objects
        if is_same:
            self._samplers = samplers
        return is_same

    def next_draws(self, count: int = 1) -> np.ndarray:
        """Keys of the next random draws of all rows, as [draws, rows]."""
        keys = self.peek_draws(count)
        for sampling, sampler in zip(self._params, self._samplers, strict=True):
            if sampling.temperature:
                sampler.draws += count
        return keys

    def peek_draws(self, count: int = 1) -> np.ndarray:
        """The same without counting them. A row that is not drawn has keys too, which nothing reads."""
        draws = np.array([sampler.draws for sampler in self._samplers], np.uint64)
        return draw_keys(self._hashed_seeds, draws + np.arange(count, dtype=np.uint64)[:, None])

    def arrays(self, rows: int, keys: np.ndarray) -> list[Tensor]:
        """What `sample` reads on the device, padded to this number of rows, which are greedy."""
        if self.entries == GREEDY:
            return []
        if self._draw_arrays is None or self._draw_arrays[0].shape[1] != rows:
            padding = [Sampling()] * (rows - len(self._params))
            self._draw_arrays = draw_arrays(self._size, [*self._params, *padding], [0] * rows)
        integers, floats = self._draw_arrays
        draws = np.repeat(integers[None], len(keys), 0)
        draws[:, 0, : len(self._params)] = keys
        entries = []
        if self.entries:
            fill = (rows, 0, 1.0) * _ENTRY_KINDS
            for column, value in zip(self._columns, fill, strict=True):
                entries.append(np.pad(column, (0, self.entries - len(column)), constant_values=value))
        return [torch.from_numpy(array) for array in (draws, floats, *entries)]


class GraphSampler:
    """Samples the rows of logits on a device, inside a graph, from what `CapturedSampling.arrays` has there."""

    def __init__(self, arrays: Sequence[Tensor], size: int, device: torch.device) -> None:
        self._draws, self._floats, self._entries = (*arrays[:2], arrays[2:]) if arrays else (None, None, ())
        self._processors = LogitsProcessors(size, (), ())
        self._draw = choose_draws(device)
        self._number = 0
        """Number of the next draw."""

    def sample(self, logits: Tensor) -> list[Tensor]:
        """[rows] each: argmax and maximum of the logits, and if not all rows are greedy, drawn tokens and maximum of
        the processed logits."""
        largest, sampled = logits.max(-1)
        if self._draws is None or self._floats is None:
            return [sampled, largest]
        scores, rows = logits.float(), len(logits)
        if self._entries:
            scores = torch.cat([scores, scores.new_zeros((1, scores.shape[1]))])  # a row for padding
            self._processors.apply(scores, self._entries)
            scores = scores[:rows]
        tokens = self._draw(scores, None, (self._draws[self._number], self._floats))
        self._number += 1
        return [sampled, largest, tokens, scores.amax(-1)]
