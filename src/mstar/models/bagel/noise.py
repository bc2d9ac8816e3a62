"""Seeded Gaussian noise that does not depend on the worker that draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""Distance between the seeds of two draws of a request, so that requests with neighboring seeds share none."""


def draw_noise(shape: Sequence[int], seed: int, draw_index: int) -> Tensor:
    """Draw standard normal values for the draw with this index of a request."""
    import torch

    generator = torch.Generator().manual_seed((seed + draw_index * _SEED_STRIDE) % (1 << 63))
    return torch.randn(tuple(shape), generator=generator)
