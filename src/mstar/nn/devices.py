"""Devices of workers by name: those of torch, and the pretend GPU that a placement can be rehearsed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from mstar.errors import LoadError
from mstar.nn.pretend_clock import device_time
from mstar.nn.pretend_gpu import NAME as PRETEND
from mstar.nn.pretend_gpu import PretendGraph, PretendPool, PretendTensor, count_one, pretend_gpu, wait_until

R = TypeVar("R")


class DeviceGraph(Protocol):
    """Operations on a device that were recorded together."""

    def replay(self) -> None:
        """Repeat the operations on the same memory."""
        ...


class HostCopy(Protocol):
    """A copy of a tensor to the host, which what is launched after it does not change."""

    def read(self) -> torch.Tensor:
        """Wait for the copy, but for nothing that was launched after it."""
        ...


class _PinnedCopy:
    """A copy from a CUDA device to pinned memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> torch.Tensor:
        """Wait for the copy."""
        self._event.synchronize()
        return self._host


class _PretendCopy:
    """A copy from the pretend GPU."""

    def __init__(self, tensor: PretendTensor) -> None:
        count_one("to_host")
        self._host, self._ready_at = tensor.held.clone(), device_time()

    def read(self) -> torch.Tensor:
        """Wait for the copy."""
        wait_until(self._ready_at)
        return self._host


def start_host_copy(tensor: torch.Tensor) -> HostCopy:
    """Start a copy of a tensor to the host."""
    return _PretendCopy(tensor) if isinstance(tensor, PretendTensor) else _PinnedCopy(tensor)


def can_capture(device: torch.device) -> bool:
    """Whether operations on a device can be captured as a graph."""
    return device.type in (PRETEND, "cuda")


def new_graph_pool(device: torch.device) -> Any:
    """Memory that graphs share for what they compute. It is that of the largest one, because they run one by one."""
    return PretendPool() if device.type == PRETEND else torch.cuda.graph_pool_handle()


def capture_graph(device: torch.device, function: Callable[[], R], pool: Any) -> tuple[R, DeviceGraph]:
    """Capture what a function does on a device. Returns its results, which a replay writes again, and the graph.

    The function runs before, because kernels are compiled and workspaces allocated by the first run.
    """
    if device.type == PRETEND:
        pool.make_room(function)
        with PretendGraph() as pretend_graph:
            return function(), pretend_graph
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results = function()
    return results, graph


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


def describe_device(device: torch.device) -> str:
    """What a device is, for reports."""
    if device.type == PRETEND:
        return "the pretend GPU, in host memory"
    if device.type != "cuda":
        return str(device)
    properties: Any = torch.cuda.get_device_properties(device)
    size = f"{properties.total_memory / 1e9:.0f} GB, compute capability {properties.major}.{properties.minor}"
    return f"{torch.cuda.device_count()} visible; {device} is {properties.name}, {size}, CUDA {torch.version.cuda}"
