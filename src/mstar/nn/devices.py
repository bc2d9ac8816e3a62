"""Devices of workers by name: those of torch, and the pretend GPU that a placement can be rehearsed on."""

from __future__ import annotations

from typing import Any

import torch

from mstar.errors import LoadError
from mstar.nn.pretend_gpu import NAME as PRETEND
from mstar.nn.pretend_gpu import pretend_gpu


def open_device(name: str) -> torch.device:
    """The device of a placement. Raises LoadError if this machine does not have it."""
    if name == PRETEND:
        return pretend_gpu()
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: torch without CUDA
        problem = f"torch cannot use the device {name!r}: {str(error).splitlines()[0]}"
        fix = "install the torch build for this machine's accelerator, or remove `device` from the placement"
        raise LoadError(f"{problem}\n  fix: {fix}") from error
    return device


def move_network(network: Any, device: torch.device | None) -> Any:
    """A network on the device of its component, for inference; without a device where it was loaded."""
    network = network.eval().requires_grad_(requires_grad=False)
    return network if device is None else network.to(device)
