"""The noise in SNAC's sound, as a function of a seed and a sample's number, so that it can be computed again.

It needs torch, and is imported where the network is. Nothing else is random in SNAC.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mstar.nn.past import now

_STEP, _FIRST, _SECOND = (number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants of SplitMix64, as torch's integers, which have a sign."""


class Noise(nn.Module):
    """Takes the place of a layer that adds noise: what it adds to a stream depends on that stream alone."""

    def __init__(self, linear: nn.Module, number: int) -> None:
        super().__init__()
        self.linear = linear
        self.number = number
        self.seeds = torch.zeros(1, dtype=torch.int64)
        """One for each stream of the batch. Whoever runs the network sets them."""

    def forward(self, sound: Tensor) -> Tensor:
        """The sound of [streams, channels, samples] with noise."""
        past, name = now(), f"noise {self.number}"
        start = past.before[name] if past is not None and past.before else torch.zeros_like(self.seeds)
        if past is not None:
            past.after[name] = start + sound.shape[-1]
        drawn = normals(self.seeds, self.number, start, sound.shape[-1])
        return sound + drawn[:, None].to(sound) * self.linear(sound)


def normals(seeds: Tensor, layer: int, start: Tensor, count: int) -> Tensor:
    """So many normal numbers for a layer and each seed, from the one with the number `start` on."""
    places = start[:, None] + torch.arange(count, device=start.device)
    bits = _mixed(_mixed(_mixed(seeds) + layer)[:, None] + places)
    first, second = ((part & 0xFFFFFFFF).double() / 2**32 for part in (bits >> 32, bits))
    return (-2 * (1 - first).log()).sqrt() * (2 * math.pi * second).cos()


def _mixed(numbers: Tensor) -> Tensor:
    """Each number as one that shows nothing of it: SplitMix64."""
    numbers = numbers + _STEP
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)
