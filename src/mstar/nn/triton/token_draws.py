"""Sampling on a GPU, a top-k and top-p kernel: temperature, top-k, top-p, min-p and the exponential race of a batch.

It draws what `mstar.nn.lm.token_draws` draws, with the same random numbers, without sorting: a program reads the scores
of its row several times, and finds the bounds of top-k and top-p bit by bit.

1. Top-k: the largest number, in the order of floats, that at least k scores reach.
2. Top-p: the smallest probability whose larger probabilities add up to less than p. Of equal tokens at this bound the
   first ones are kept until p is reached.
3. The token whose exponential time divided by its probability is smallest, of those that are left.

Importing this module imports triton.
"""

# pyright: reportOperatorIssue=false
# Type checkers see the functions that a kernel is compiled from.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstar.nn.triton import LAUNCH_OPTIONS
from mstar.requests import Sampling

_BLOCK = 4096
"""Scores that a program reads at once."""


@triton.jit
def _ordered(scores):
    """Integers in the order of floats."""
    bits = scores.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _arrival_times(key, tokens):
    """The times of `mstar.nn.lm.random_numbers.arrival_times`, in float64."""
    state = key.to(tl.uint64, bitcast=True) + (tokens + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    fraction = ((state >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    # -log1p(-fraction), which is a series for small fractions: 1 - fraction would be rounded.
    series = fraction * (1.0 + fraction * (1 / 2 + fraction * (1 / 3 + fraction * (1 / 4 + fraction / 5))))
    return tl.where(fraction < 1e-3, series, -tl.log(1.0 - fraction))


@triton.jit
def _read(scores, column, size, temperature):
    """Scores divided by the temperature; beyond the end -inf."""
    return tl.load(scores + column, mask=column < size, other=float("-inf")) / temperature


@triton.jit
def _top_k_bound(scores, size, temperature, top_k, BLOCK: tl.constexpr):
    """The largest integer that at least k ordered scores reach."""
    least = tl.full((), -2147483648, tl.int32)
    if top_k < size:
        for bit in range(32):  # the order of integers starts at -2**31, so that the sign is the highest bit
            bound = (least.to(tl.int64) + (tl.full((), 1, tl.int64) << (31 - bit))).to(tl.int32)
            count = tl.zeros((), tl.int64)
            for first in range(0, size, BLOCK):
                column = first + tl.arange(0, BLOCK)
                is_kept = (_ordered(_read(scores, column, size, temperature)) >= bound) & (column < size)
                count += tl.sum(is_kept.to(tl.int64), 0)
            least = tl.where(count >= top_k, bound, least)
    return least


@triton.jit
def _probabilities(scores, column, size, temperature, distribution):
    """Probabilities after top-k. The distribution is the largest score, the bound of top-k, the sum of exponentials."""
    x = _read(scores, column, size, temperature)
    return tl.where(_ordered(x) >= distribution[1], tl.exp(x - distribution[0]) / distribution[2], 0.0)


@triton.jit
def _mass_above(
    scores,
    size,
    temperature,
    distribution,
    bound,
    BLOCK: tl.constexpr,
):
    """Sum of the probabilities above a bound, which is given by its bits."""
    mass = tl.zeros((), tl.float32)
    for first in range(0, size, BLOCK):
        p = _probabilities(scores, first + tl.arange(0, BLOCK), size, temperature, distribution)
        mass += tl.sum(tl.where(p.to(tl.int32, bitcast=True) > bound, p, 0.0), 0)
    return mass


@triton.jit
def _top_p_bound(
    scores,
    size,
    temperature,
    distribution,
    top_p,
    BLOCK: tl.constexpr,
):
    """Bits of the smallest probability whose larger ones add up to less than p, and what is left of p for equal ones.

    Positive floats are ordered as their bits. Without top-p the bound is -1, which is below all of them.
    """
    bound = tl.full((), -1, tl.int32)
    room = tl.zeros((), tl.float32)
    if top_p < 1.0:
        for bit in range(31):
            higher = bound + (tl.full((), 1, tl.int32) << (30 - bit))
            mass = _mass_above(scores, size, temperature, distribution, higher, BLOCK)
            bound = tl.where(mass >= top_p, higher, bound)
        bound += 1
        room = top_p - _mass_above(scores, size, temperature, distribution, bound, BLOCK)
    return bound, room


@triton.jit(do_not_specialize_on_alignment=["keys", "top_ks", "temperatures", "top_ps", "min_ps"])
def draw(
    drawn,
    scores,
    row_stride,
    size,
    keys,
    top_ks,
    temperatures,
    top_ps,
    min_ps,
    BLOCK: tl.constexpr,
):
    """Draw the token of one row; with temperature 0 the first of the largest scores."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * row_stride
    key = tl.load(keys + row)
    temperature = tl.load(temperatures + row).to(tl.float32)
    is_greedy = temperature == 0.0
    temperature = tl.where(is_greedy, 1.0, temperature)

    largest = tl.full((), float("-inf"), tl.float32)
    for first in range(0, size, BLOCK):
        largest = tl.maximum(largest, tl.max(_read(scores, first + tl.arange(0, BLOCK), size, temperature), 0))
    least = _top_k_bound(scores, size, temperature, tl.load(top_ks + row), BLOCK)
    total = tl.zeros((), tl.float32)
    for first in range(0, size, BLOCK):
        p = _probabilities(scores, first + tl.arange(0, BLOCK), size, temperature, (largest, least, 1.0))
        total += tl.sum(p, 0)
    top_p = tl.load(top_ps + row).to(tl.float32)
    bound, room = _top_p_bound(scores, size, temperature, (largest, least, total), top_p, BLOCK)
    least_p = tl.load(min_ps + row).to(tl.float32) * (1.0 / total)

    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int64)
    bound_p = bound.to(tl.float32, bitcast=True)
    ties = tl.zeros((), tl.float32)
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        p = _probabilities(scores, column, size, temperature, (largest, least, total))
        bits = p.to(tl.int32, bitcast=True)
        tie = ((bits == bound) & (column < size)).to(tl.float32)
        before = ties + tl.cumsum(tie, 0) - tie
        ties += tl.sum(tie, 0)
        is_left = (bits > bound) | ((tie > 0) & (before * bound_p < room))
        race = tl.where(is_left & (p >= least_p), p, 0.0) / _arrival_times(key, column.to(tl.int64)).to(tl.float32)
        race = tl.where(is_greedy, _read(scores, column, size, 1.0), race)
        race = tl.where(column < size, race, float("-inf"))
        highest = tl.max(race, 0)
        token = tl.where(highest > best, first + tl.argmax(race, 0), token).to(tl.int64)
        best = tl.maximum(best, highest)
    tl.store(drawn + row, token)


def draw_batch(scores: Tensor, params: Sequence[Sampling] | None, arrays: Sequence[Tensor]) -> Tensor:  # noqa: ARG001
    """Draw one token for each row, as [rows]: the function of this name of `mstar.nn.lm.token_draws`."""
    (keys, top_ks), (temperatures, top_ps, min_ps) = arrays
    drawn = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    kernel: Any = draw
    with torch.cuda.device(scores.device) if scores.is_cuda else nullcontext():
        kernel[len(scores),](
            *(drawn, scores, scores.stride(0), scores.shape[1], keys, top_ks, temperatures, top_ps, min_ps),
            BLOCK=min(_BLOCK, triton.next_power_of_2(scores.shape[1])),
            **LAUNCH_OPTIONS,
        )
    return drawn
