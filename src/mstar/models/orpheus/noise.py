"""The noise in SNAC's sound, as a function of a seed and a sample's number, so that it can be computed again.

It needs torch, and is imported where the network is. Nothing else is random in SNAC.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mstar.nn.audio.streaming import current_state

_SPLITMIX_GAMMA, _SPLITMIX_MIX_1, _SPLITMIX_MIX_2 = (
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64, as torch's integers, which have a sign."""


class SeededNoiseBlock(nn.Module):
    """Takes the place of a layer that adds noise: what it adds to a stream depends on that stream alone."""

    def __init__(self, linear: nn.Module, layer_index: int) -> None:
        super().__init__()
        self.linear = linear
        self.layer_index = layer_index
        self.seeds = torch.zeros(1, dtype=torch.int64)
        """One for each stream of the batch. Whoever runs the network sets them."""

    def forward(self, x: Tensor) -> Tensor:
        """The sound of [streams, channels, samples] with noise."""
        past, name = current_state(), f"noise {self.layer_index}"
        start = past.before[name] if past is not None and past.before else torch.zeros_like(self.seeds)
        if past is not None:
            past.after[name] = start + x.shape[-1]
        drawn = draw_normals(self.seeds, self.layer_index, start, x.shape[-1])
        return x + drawn[:, None].to(x) * self.linear(x)


def draw_normals(seeds: Tensor, layer: int, start: Tensor, count: int) -> Tensor:
    """So many normal numbers for a layer and each seed, from the one with the number `start` on."""
    places = start[:, None] + torch.arange(count, device=start.device)
    bits = _splitmix64(_splitmix64(_splitmix64(seeds) + layer)[:, None] + places)
    first, second = ((part & 0xFFFFFFFF).double() / 2**32 for part in (bits >> 32, bits))
    return (-2 * (1 - first).log()).sqrt() * (2 * math.pi * second).cos()


def _splitmix64(numbers: Tensor) -> Tensor:
    """Each number as one that shows nothing of it: SplitMix64."""
    numbers = numbers + _SPLITMIX_GAMMA
    for shift, factor in ((30, _SPLITMIX_MIX_1), (27, _SPLITMIX_MIX_2)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)
