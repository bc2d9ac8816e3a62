"""Staging: copies between host and device. Small arrays of a batch are copied together, as each copy costs a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    """Arrays of int64 or float64 as tensors on a device, in one copy that does not wait; on a CPU without a copy."""
    tensors = [torch.from_numpy(np.asarray(array)) for array in arrays]
    return tensors if device.type == "cpu" else split(join(tensors, device).to(device, non_blocking=True), tensors)


def join(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors of int64 or float64 in one buffer of int64 on the host, from which a device can copy."""
    joined = torch.from_numpy(np.concatenate([tensor.numpy().ravel().view(np.int64) for tensor in tensors]))
    return joined.pin_memory() if device.type == "cuda" else joined  # a copy from other memory waits for the device


def split(joined: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a buffer, with the shapes and types of the tensors that were joined."""
    parts = joined.split([tensor.numel() for tensor in tensors])
    return [part.view(like.dtype).view(like.shape) for part, like in zip(parts, tensors, strict=True)]


def to_host(tensor: Tensor) -> Tensor:
    """A tensor on the host, in pinned memory if it comes from a CUDA device: such copies run at the rate of the bus."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


_share_memory: Callable[[int], Any] | None = None


def use_shared_exports(share_memory: Callable[[int], Any] | None) -> None:
    """Have large exports written to memory from this function, a writable buffer that other processes can map."""
    global _share_memory  # noqa: PLW0603 - one per process, as the processes that can map it
    _share_memory = share_memory


def new_export(size: int, min_shared: int = 8 << 20) -> Tensor:
    """Bytes on the host for an export. Small ones are copied with the message that they are in."""
    if _share_memory is None or size < min_shared:
        return torch.empty(size, dtype=torch.uint8)
    return torch.frombuffer(_share_memory(size), dtype=torch.uint8)
