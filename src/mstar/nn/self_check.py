"""Self-check of library networks at load time: compare two results that must agree, and reject the network if not.

A component calls it for an assumption that it makes about a network, such as that padding does not change results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mstar.errors import LoadError


def require_close(actual: Tensor, expected: Tensor, what: str, fix: str) -> None:
    """Raise LoadError unless two results are equal up to rounding errors."""
    if actual.shape != expected.shape:
        raise LoadError(f"{what}: shape {tuple(actual.shape)} instead of {tuple(expected.shape)}\n  fix: {fix}")
    # Any network has norms in float32, so a float64 network is compared in float32 precision.
    eps = max(torch.finfo(dtype).eps for dtype in (expected.dtype, torch.float32))
    largest = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)  # a result can be all zeros
    difference = float((actual - expected).abs().max() / largest)
    if not difference <= eps**0.5:
        raise LoadError(f"{what}: relative difference {difference:.0e}, limit {eps**0.5:.0e}\n  fix: {fix}")
