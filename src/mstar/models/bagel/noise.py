"""Noise that a seed stands for: the same wherever it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""Neighbouring seeds are of requests that were made together: what else a request draws is far from all of them."""


def draw_noise(shape: Sequence[int], seed: int, draw_index: int) -> Tensor:
    """Numbers of a normal distribution: those with this number that a request draws."""
    import torch

    drawn = torch.Generator().manual_seed((seed + draw_index * _SEED_STRIDE) % (1 << 63))
    return torch.randn(tuple(shape), generator=drawn)
