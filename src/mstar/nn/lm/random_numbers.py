"""Counter-based random numbers: a number is a hash of a seed, the number of the draw, and a token.

Nothing is kept between draws, so that a sampler forks, rolls back and migrates as an integer, a row does not depend on
its batch, and the numbers are the same on every device. A draw computes only the numbers of the tokens that are left
after top-k and top-p. The hash is that of SplitMix64 (Steele, Lea and Flood 2014): its stream that starts at a hash of
seed and draw, at the index of the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15
"""Increment of the state of SplitMix64: 2**64 divided by the golden ratio."""
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1
_FRACTION_BITS = 53


def draw_key(seed: int, draw: int) -> int:
    """The key of a draw of a request, as a signed integer of 64 bits."""
    state = (_hash(seed & _MASK) + draw * _STEP) & _MASK
    return _signed(_hash(state))


def hash_seeds(seeds: Sequence[int]) -> np.ndarray:
    """The part of `draw_keys` that depends on the seeds of the requests only."""
    return _hash(np.array([seed & _MASK for seed in seeds], np.uint64))


def draw_keys(hashed_seeds: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """`draw_key` for arrays, both of unsigned integers of 64 bits."""
    return _hash(hashed_seeds + draws * np.uint64(_STEP)).view(np.int64)


def arrival_times(keys: Tensor, tokens: Tensor) -> Tensor:
    """Random times with the exponential distribution, in float64, for the tokens of draws with these keys.

    The token with the smallest time divided by its probability is a sample of the distribution.
    """
    state = keys + (tokens + 1) * _signed(_STEP)
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        state = (state ^ _shifted(state, shift)) * _signed(factor)
    state ^= _shifted(state, _SHIFTS[-1])
    # Never 0. The largest value is rounded to 1, and its time is infinite.
    fraction = (_shifted(state, 64 - _FRACTION_BITS).to(torch.float64) + 0.5) * 2.0**-_FRACTION_BITS
    return -torch.log1p(-fraction)


def _hash(state: Any) -> Any:
    """Of an integer of 64 bits, or of an array of them."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        state = (state ^ state >> shift) * factor & _MASK
    return state ^ state >> _SHIFTS[-1]


def _shifted(state: Tensor, shift: int) -> Tensor:
    """The logical right shift; that of torch repeats the sign."""
    return (state >> shift) & ((1 << (64 - shift)) - 1)


def _signed(number: int) -> int:
    """The integer of 64 bits with the same bits: torch has no products of unsigned ones."""
    return number - (1 << 64) if number >> 63 else number
