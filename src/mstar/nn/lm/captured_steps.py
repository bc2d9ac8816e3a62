"""Captured decode steps: on a device, a step of a fixed size is captured as a graph once, and then replayed.

A decode step has hundreds of short kernels; launching them one by one takes the host longer than running them takes a
GPU. A graph is launched at once, and repeats its operations on the same memory, so everything that differs from step to
step is in one buffer of a fixed size: tokens, positions, slots and the plan of the attention. A batch is padded to the
next size. Rows of padding read and write a scratch page, which no request has.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mstar.nn.devices import DeviceGraph, can_capture, capture_graph
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.paged_attention import DecodeBatch, extend_caches, running
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.staging import join, split

log = logging.getLogger("mstar.worker")

BATCH_SIZES = (1, 2, 4, 8, *range(16, 257, 8))
"""Numbers of rows of the graphs. A larger batch runs without a graph."""

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Embeddings, positions and indices of logits to logits and hidden states."""


class CapturedSteps:
    """Graphs of the decode steps of one decoder, by number of rows and of pages of the longest request."""

    def __init__(self, store: KVStore, embed: Callable[[Tensor], Tensor], forward: Forward) -> None:
        self._store, self._embed, self._forward = store, embed, forward
        self._scratch = PagedKV(store, SamplerState())
        extend_caches(store, [self._scratch], [1])
        self.graphs: dict[tuple[int, int], StepGraph] = {}
        """By number of rows and of pages."""
        self._is_refused = False
        """Whether a capture failed. It would fail again."""

    @classmethod
    def create(cls, store: KVStore, embed: Callable[[Tensor], Tensor], forward: Forward) -> Self | None:
        """Graphs for a decoder, none of them captured; None if its device has no graphs."""
        return cls(store, embed, forward) if can_capture(store.device) else None

    def run(self, tokens: Tensor, caches: Sequence[PagedKV]) -> tuple[Tensor, Tensor] | None:
        """Logits and hidden states of one token per request, whose slot is allocated; None if no graph can do it."""
        if self._is_refused or len(caches) > BATCH_SIZES[-1]:
            return None
        rows = BATCH_SIZES[bisect_left(BATCH_SIZES, len(caches))]
        longest = max(len(cache.table.pages) for cache in caches)
        pages = 1 << (longest - 1).bit_length()
        padding = rows - len(caches)
        padded = [*caches, *[self._scratch] * padding]
        batch = self._batch(padded, pages)
        arrays = [torch.nn.functional.pad(tokens, (0, padding)), *batch.arrays]
        if (rows, pages) not in self.graphs:
            try:
                self.graphs[rows, pages] = self._capture(lambda: self._batch(padded, pages), arrays)
            except RuntimeError as error:  # a layer waits for the device, or a library does not support capture
                log.warning("decode steps run without graphs, which is slower: %s", str(error).splitlines()[0])
                self._is_refused = True
                return None
        logits, hidden = self.graphs[rows, pages].run(batch, arrays)
        return logits[: len(caches)], hidden[: len(caches)]

    def _batch(self, caches: Sequence[PagedKV], pages: int) -> DecodeBatch:
        batch = DecodeBatch(self._store, caches)
        batch.min_positions = pages * self._store.pool.page_size
        return batch

    def _capture(self, make_batch: Callable[[], DecodeBatch], arrays: list[Tensor]) -> StepGraph:
        """Capture the step of batches like this one, which are described by `arrays`."""
        device = self._store.device
        buffer = join(arrays, device).to(device)
        tokens, *others = split(buffer, arrays)
        last = torch.arange(len(tokens), device=device)
        _prepare(make_batch(), others)

        def step() -> tuple[Tensor, Tensor]:
            batch = make_batch()  # a new one: an earlier one can have computed masks that are not in the graph
            batch.arrays = others
            with running(batch):
                return self._forward(self._embed(tokens)[None], batch.positions[None], last)

        results, graph = capture_graph(device, step)
        return StepGraph(graph, buffer, others, last, results)


@dataclass(frozen=True)
class StepGraph:
    """Graph of a step with one number of rows and pages."""

    graph: DeviceGraph
    buffer: Tensor
    """All that differs from step to step."""
    arrays: list[Tensor]
    """Its parts that describe the batch."""
    last: Tensor
    results: tuple[Tensor, Tensor]

    def run(self, batch: DecodeBatch, arrays: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of a batch, whose tokens and description are these arrays."""
        self.buffer.copy_(join(arrays, self.buffer.device), non_blocking=True)
        _prepare(batch, self.arrays)
        self.graph.replay()
        logits, hidden = self.results
        return logits.clone(), hidden.clone()  # the next step writes to the same memory


def _prepare(batch: DecodeBatch, arrays: Sequence[Tensor]) -> None:
    """Let the attention backend plan a batch, which these arrays describe on the device, outside of the graph."""
    batch.arrays = arrays
    batch.store.backend.prepare_graph(batch)
