"""Seeded noise for SNAC: a counter-based generator (SplitMix64) of the seed and the sample index.

Recomputed or streamed audio gets the same noise. Nothing else in SNAC is random. Imports torch, so it is imported
inside ops only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mstar.nn.audio.streaming import current_state

_SPLITMIX_GAMMA, _SPLITMIX_MIX_1, _SPLITMIX_MIX_2 = (
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Constants of SplitMix64, as signed 64-bit integers."""


class SeededNoiseBlock(nn.Module):
    """Replaces a noise layer of SNAC. The noise of a stream depends only on its seed and position."""

    def __init__(self, linear: nn.Module, layer_index: int) -> None:
        super().__init__()
        self.linear = linear
        self.layer_index = layer_index
        self.seeds: Tensor = nn.Buffer(torch.zeros(1, dtype=torch.int64), persistent=False)
        """Seed per stream of the batch. Set before each forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Add noise to [streams, channels, samples]."""
        state, name = current_state(), f"noise {self.layer_index}"
        start = state.before[name] if state is not None and state.before else torch.zeros_like(self.seeds)
        if state is not None:
            state.after[name] = start + x.shape[-1]
        noise = draw_normals(self.seeds, self.layer_index, start, x.shape[-1])
        return x + noise[:, None].to(x) * self.linear(x)


def draw_normals(seeds: Tensor, layer: int, start: Tensor, count: int) -> Tensor:
    """Draw `count` normal values per seed for a layer, starting at the sample index `start`."""
    indices = start[:, None] + torch.arange(count, device=start.device)
    bits = _splitmix64(_splitmix64(_splitmix64(seeds) + layer)[:, None] + indices)
    first, second = ((part & 0xFFFFFFFF).double() / 2**32 for part in (bits >> 32, bits))
    return (-2 * (1 - first).log()).sqrt() * (2 * math.pi * second).cos()


def _splitmix64(numbers: Tensor) -> Tensor:
    """Hash integers with SplitMix64."""
    numbers = numbers + _SPLITMIX_GAMMA
    for shift, factor in ((30, _SPLITMIX_MIX_1), (27, _SPLITMIX_MIX_2)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)
