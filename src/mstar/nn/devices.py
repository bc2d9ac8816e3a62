"""Devices of workers by name: those of torch, and the pretend GPU that a placement can be rehearsed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from mstar.errors import LoadError
from mstar.nn.pretend_gpu import NAME as PRETEND
from mstar.nn.pretend_gpu import PretendGraph, PretendPool, pretend_gpu

R = TypeVar("R")


class DeviceGraph(Protocol):
    """Operations on a device that were recorded together."""

    def replay(self) -> None:
        """Repeat the operations on the same memory."""
        ...


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
