"""Staging: small arrays of a batch that are copied to a device together, because each copy costs a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    """Arrays of int64 or float64 as tensors on a device, in one copy that does not wait; on a CPU without a copy."""
    arrays = [np.asarray(array) for array in arrays]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    joined = torch.from_numpy(np.concatenate([array.ravel().view(np.int64) for array in arrays]))
    if device.type == "cuda":
        joined = joined.pin_memory()  # a copy from other memory waits for the device
    parts = joined.to(device, non_blocking=True).split([array.size for array in arrays])
    dtypes = [torch.float64 if array.dtype == np.float64 else torch.int64 for array in arrays]
    return [part.view(dtype).view(array.shape) for part, dtype, array in zip(parts, dtypes, arrays, strict=True)]
