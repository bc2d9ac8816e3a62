"""Synthetic values: arrays that a twin returns in place of those that a network computes."""

from __future__ import annotations

from math import prod, tau
from typing import TYPE_CHECKING

import torch

from mstar.walk.twin import TWIN_TONE_HZ

if TYPE_CHECKING:
    from torch import Tensor

TONE_RATE_HZ = 24_000
TONE_AMPLITUDE = 0.1
GRAY = 128


def make_tone(samples: int, rate: int = TONE_RATE_HZ) -> Tensor:
    """A quiet tone, as float32."""
    return TONE_AMPLITUDE * torch.sin(torch.arange(samples) * (tau * TWIN_TONE_HZ / rate))


def make_array(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """An array of a dtype of the walk graph: a tone for floats, gray for bytes, else zeros."""
    kind = torch.float32 if dtype == "float" else getattr(torch, dtype)
    if kind.is_floating_point:
        return make_tone(prod(shape)).to(kind).reshape(shape)
    return torch.full(shape, GRAY if kind is torch.uint8 else 0, dtype=kind)
