"""Memory of a worker's device: how much its components can use, and how many KV cache pages fit.

1. The limit is the share of the device that the placement gives the worker (`memory`; in vLLM
   `gpu_memory_utilization`), at most what is free when the worker starts.
2. Each component loads its weights and runs the largest batch (profile run). Weights that do not fit are refused
   before they are copied. Activations that grow with the context, such as gathered pages, count as part of a page.
3. When all components are loaded, the weights of all of them, the largest activations (components run one at a time),
   the captured graphs of all of them and the pages that authors fixed (`pages=`) are subtracted from the limit. The
   rest is divided in equal parts between the other components with KV pages.

Example: 80 GB, memory = 0.85, one language model with 16 GB of weights and 1 GB of activations: 68 - 17 = 51 GB of
pages.

The figures are those of the allocator of the device: what the driver and other processes take is not in the limit, so
the share must leave room for it. A device that does not report its memory has no limit, and a fixed number of pages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mstar.errors import LoadError
from mstar.nn.device_graphs import MAX_BUFFER_BYTES
from mstar.nn.memory_limits import DEFAULT_SHARE, MIN_POSITIONS, format_bytes

log = logging.getLogger("mstar.worker")

_PROFILE_TOKENS = 2048
"""Tokens of the profile run if batches have no limit."""
_GRAPH_BUFFER_SHARE = 0.01
"""Share of the limit that the buffers of the captured graphs of a component can use."""
_FIX = "use a larger device or share (`memory`), or place components on other workers"


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Figures of a network that are measured when it is loaded."""

    page_bytes: int
    """Bytes of the keys and values of a page, all layers together."""
    page_size: int
    """Positions of a page."""
    activation_bytes: int
    """Bytes of the largest activations of the profile run."""
    context_bytes: int = 0
    """Bytes by which the activations, and those of captured graphs, grow with each page of context."""
    graph_bytes: int = 0
    """Bytes of captured graphs, which are not shared with other components."""

    @property
    def page_cost(self) -> int:
        """Bytes to reserve for a page."""
        return self.page_bytes + self.context_bytes


@dataclass(frozen=True, slots=True)
class _Request:
    name: str
    profile: MemoryProfile
    pages: int | None
    """The number of pages that the author fixed."""
    allocate: Callable[[int], None]


class DeviceMemory:
    """Memory that the components of a worker share on one device."""

    def __init__(self, device: torch.device, limit: int, *, max_batched_tokens: int, max_batch_size: int) -> None:
        self.device, self.limit = device, limit
        self.max_batched_tokens, self.max_batch_size = max_batched_tokens, max_batch_size
        self._module: Any = torch.get_device_module(device)
        self._requests: list[_Request] = []
        self._reserved = 0
        """Bytes of captured graphs of components without KV pages."""
        self.agree: Callable[[int], int] = int
        """Returns the number of pages of all ranks of a worker, given that of this one."""

    @property
    def share(self) -> float:
        """The limit as a share of the memory of the device."""
        return self.limit / self._module.mem_get_info(self.device)[1]

    @property
    def graph_buffer_bytes(self) -> int:
        """Maximum bytes of the buffers of the captured graphs of a component."""
        return min(MAX_BUFFER_BYTES, int(_GRAPH_BUFFER_SHARE * self.limit))

    @property
    def used(self) -> int:
        """Bytes of all tensors on the device."""
        return self._module.memory_allocated(self.device)

    def require(self, name: str, network: torch.nn.Module) -> None:
        """Raise LoadError unless the weights of a network fit."""
        needed, left = weight_bytes(network), self.limit - self.used
        if needed > left:
            problem = f"{name} needs {format_bytes(needed)} for its weights on {self.device}, and has"
            limit = f"of the {format_bytes(self.limit)} that the worker can use there"
            raise LoadError(f"{problem} {format_bytes(left)} {limit}\n  fix: {_FIX}")

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Report a component that runs out of memory while it is loaded and profiled."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            problem = f"{name} runs out of memory on {self.device} when it is loaded: {error}"
            limit = f"the worker can use {format_bytes(self.limit)}"
            raise LoadError(f"{problem}\n  note: {limit}\n  fix: {_FIX}") from error

    def measure_peak(self, run: Callable[[], Any]) -> int:
        """Bytes that a function uses on the device beyond those in use before."""
        before = self.used
        self._module.reset_peak_memory_stats(self.device)
        run()
        return max(0, self._module.max_memory_allocated(self.device) - before)

    def reserve_peak(self, run: Callable[[], Any]) -> None:
        """Run a function, and keep the memory that it uses free for another run."""
        before = self.used
        peak = self.measure_peak(run)
        self._reserved += max(0, peak - (self.used - before))

    def add(self, name: str, profile: MemoryProfile, pages: int | None, allocate: Callable[[int], None]) -> None:
        """Register a loaded component. `allocate` is called with the number of its pages when all are loaded.

        `pages` are those that its author fixed.
        """
        self._requests.append(_Request(name, profile, pages, allocate))

    def allocate(self) -> None:
        """Divide what is left, and allocate the KV caches. Raises LoadError if there is too little."""
        if not self._requests:
            return
        weights, activations = self.used, max(request.profile.activation_bytes for request in self._requests)
        if hasattr(self._module, "empty_cache"):
            self._module.empty_cache()  # the activations of the profile runs
        graphs = self._reserved + sum(request.profile.graph_bytes for request in self._requests)
        fixed = sum(request.pages * request.profile.page_cost for request in self._requests if request.pages)
        sized = [request for request in self._requests if request.pages is None]
        left = self.limit - weights - activations - graphs - fixed
        part = left // len(sized) if sized else 0
        needed = [min_pages(request.profile.page_size) * request.profile.page_cost for request in sized]
        if left < 0 or any(part < one for one in needed):
            minimum = fixed + len(needed) * max(needed, default=0)
            names = ", ".join(request.name for request in self._requests)
            figures = (
                f"{format_bytes(weights)} for weights, {format_bytes(activations)} for activations, "
                f"{format_bytes(graphs)} for captured graphs and at least {format_bytes(minimum)} for KV cache pages"
            )
            total = format_bytes(weights + activations + graphs + minimum)
            limit = f"{format_bytes(self.limit)} can be used"
            raise LoadError(f"{total} are needed on {self.device} for {names} ({figures}), and {limit}\n  fix: {_FIX}")
        for request in self._requests:
            pages = request.pages or self.agree(part // request.profile.page_cost)
            request.allocate(pages)
            size = format_bytes(pages * request.profile.page_bytes)
            log.info(
                "%s has %d KV cache pages of %d positions on %s (%s)",
                *(request.name, pages, request.profile.page_size, self.device, size),
            )
        self._requests.clear()


def open_memory(
    device: torch.device, share: float | None, *, max_batched_tokens: int | None, max_batch_size: int
) -> DeviceMemory | None:
    """Memory of a device; None if the device does not report it, as a CPU.

    Raises LoadError if a share is set for such a device.
    """
    module: Any = None if device.type == "cpu" else torch.get_device_module(device)
    sizes = None if not hasattr(module, "mem_get_info") else module.mem_get_info(device)
    if sizes is None:
        if share is not None:
            problem = f"memory = {share} is set for {device}, which does not report its memory"
            raise LoadError(f"{problem}\n  fix: remove `memory` from the placement")
        return None
    free, total = sizes
    limit = min(int((DEFAULT_SHARE if share is None else share) * total), free)
    tokens = max_batched_tokens or _PROFILE_TOKENS
    return DeviceMemory(device, limit, max_batched_tokens=tokens, max_batch_size=max_batch_size)


def min_pages(page_size: int) -> int:
    """Minimum number of pages of a KV cache that is sized from memory."""
    return -(-MIN_POSITIONS // page_size)


def weight_bytes(network: torch.nn.Module) -> int:
    """Bytes of the parameters and buffers of a network; shared ones count once."""
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
