"""Trying what we rely on in a library's network, where it is loaded: what would be served wrong is refused.

It compares two results that must agree. Which two, and when, is the business of the component that relies on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mstar.errors import LoadError


def require_close(got: Tensor, wanted: Tensor, what: str, fix: str) -> None:
    """Raise LoadError unless two results are equal, but for what rounding can do."""
    if got.shape != wanted.shape:
        raise LoadError(f"{what}: {tuple(got.shape)} instead of {tuple(wanted.shape)}\n  fix: {fix}")
    eps = max(
        torch.finfo(kind).eps for kind in (wanted.dtype, torch.float32)
    )  # norms in float32 are found in any network
    differs = float((got - wanted).abs().max() / wanted.abs().max())
    if not differs <= eps**0.5:
        raise LoadError(f"{what}: it differs by {differs:.0e} of the largest value\n  fix: {fix}")
