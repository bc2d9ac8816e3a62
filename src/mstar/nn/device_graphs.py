"""Captured graphs of a network on a device, by the shape of their batch: how many there are, and what they share.

Launching hundreds of short kernels one by one takes the host longer than running them takes a GPU. A CUDA graph is
launched at once, and repeats its operations on the same memory. So everything that differs from batch to batch is in
one buffer, which is copied before a replay, and a batch is padded to a shape that has a graph.

Memory: what graphs compute is in a pool that is as large as the largest of them needs. Each graph has its buffer.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mstar.nn.devices import DeviceGraph, capture_graph, new_graph_pool
from mstar.nn.staging import join, split

log = logging.getLogger("mstar.worker")

MAX_ROWS = 256
"""Maximum number of rows of a graph. A larger batch runs without a graph."""
MAX_GRAPHS = 64
"""Maximum number of graphs of a network. The least recently used one is dropped for another one."""
MAX_BUFFER_BYTES = 64_000_000
"""Maximum bytes of the buffers of all graphs of a network."""

K = TypeVar("K", bound=Hashable)
Prepare = Callable[[Sequence[Tensor]], object]


def padded_size(count: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True)
class CapturedGraph:
    """A graph with its buffer and its results."""

    graph: DeviceGraph
    buffer: Tensor
    """All integers that differ from batch to batch."""
    parts: Sequence[Tensor]
    """The arrays in the buffer."""
    results: Any
    prepared: object
    """What `prepare` has made for the graph, and the graph uses: kept as long as the graph."""

    def run(self, arrays: Sequence[Tensor], prepare: Prepare | None = None) -> Any:
        """Results for the batch that these arrays describe. The next replay of any graph overwrites them.

        `prepare` does what is needed outside of the graph; it gets the arrays on the device.
        """
        self.buffer.copy_(join(arrays, self.buffer.device), non_blocking=True)
        if prepare is not None:
            prepare(self.parts)
        self.graph.replay()
        return self.results


class DeviceGraphs(Generic[K]):
    """Graphs of one network by shape, captured when a batch of their shape first runs."""

    def __init__(self, device: torch.device, what: str, *, max_buffer_bytes: int = MAX_BUFFER_BYTES) -> None:
        self._device, self._what, self._max_buffer_bytes = device, what, max_buffer_bytes
        self._pool: Any = None
        self.graphs = OrderedDict[K, CapturedGraph]()
        """By shape, the least recently used one first."""
        self._is_refused = False
        """Whether a capture failed. It would fail again."""

    def find(self, shape: K) -> CapturedGraph | None:
        """The graph of a shape, if it is captured."""
        graph = self.graphs.get(shape)
        if graph is not None:
            self.graphs.move_to_end(shape)
        return graph

    def capture(
        self,
        shape: K,
        arrays: Sequence[Tensor],
        run: Callable[[Sequence[Tensor]], Any],
        prepare: Prepare | None = None,
    ) -> CapturedGraph | None:
        """Capture what a function does with arrays like these, which it gets on the device; None if that fails.

        `prepare` runs before it, outside of the graph. What it returns is kept as long as the graph.
        """
        size = sum(array.nbytes for array in arrays)
        if self._is_refused or size > self._max_buffer_bytes:
            return None
        self._drop(self._max_buffer_bytes - size)
        if self._pool is None:
            self._pool = new_graph_pool(self._device)
        buffer = join(arrays, self._device).to(self._device)
        parts = split(buffer, arrays)
        try:
            prepared = None if prepare is None else prepare(parts)
            results, graph = capture_graph(self._device, lambda: run(parts), self._pool)
        except RuntimeError as error:  # a layer waits for the device, or a library does not support capture
            log.warning("%s run without graphs, which is slower: %s", self._what, str(error).splitlines()[0])
            self._is_refused = True
            return None
        self.graphs[shape] = CapturedGraph(graph, buffer, parts, results, prepared)
        return self.graphs[shape]

    def _drop(self, max_bytes: int) -> None:
        """Drop the least recently used graphs, until there is room for one more and for its buffer."""
        while len(self.graphs) >= MAX_GRAPHS or sum(graph.buffer.nbytes for graph in self.graphs.values()) > max_bytes:
            self.graphs.popitem(last=False)
