"""Captured decode steps: on a device, a step of a fixed size is captured as a graph once, and then replayed.

A step is one graph from the tokens to the next tokens: embedding, layers, logits and sampling. What is sampled outside
is listed in `mstar.nn.lm.device_steps.captured_sampling`. Tokens, positions, slots, the plan of the attention and the
sampling parameters are in its buffer. A batch is padded to the next size. Rows of padding read and write a scratch
page, which no request has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mstar.nn.device_graphs import MAX_BUFFER_BYTES, MAX_ROWS, CapturedGraph, DeviceGraphs, padded_size
from mstar.nn.devices import can_capture, start_host_copy
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.paged_attention import DecodeBatch, extend_caches, running
from mstar.nn.kv.torch_attention import TORCH_ATTENTION
from mstar.nn.lm.device_steps.captured_sampling import ENTRY_COUNTS, CapturedSampling, GraphSampler
from mstar.nn.lm.sampler import read_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.staging import to_device
from mstar.requests import Sampling

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Embeddings, positions and indices of logits to logits and hidden states."""
Step = tuple[Tensor | None, Tensor, Tensor]
"""Tokens on the host, or None if they are to be sampled from the logits; logits and hidden states."""

_NO_DRAWS = np.zeros((1, 1), np.int64)
_GREEDY_TOKENS, _DRAWN_TOKENS = 0, 2
"""Parts of `GraphSampler.sample` with the tokens of all rows: of the two parts without draws, and with draws."""


def _read_table(table: Tensor, rows: Sequence[int], drawn_rows: Sequence[int]) -> Tensor:
    """Tokens of a step from its results for these of its rows, on the host. Raises RowsFailed."""
    chosen, largest, *others = table
    is_drawn = {*drawn_rows}
    drawn = [number for number, row in enumerate(rows) if row in is_drawn]
    return read_tokens([chosen, largest, *(other[drawn] for other in others if drawn)], drawn)


class LaunchedStep:
    """A step whose results the host has not read."""

    def __init__(self, table: Tensor, tokens: Tensor, sampling: CapturedSampling, count: int) -> None:
        self._tokens = tokens.clone()  # the next replay overwrites them
        self._rows = [*range(count)]
        self._copy = start_host_copy(table)
        self._drawn_rows = sampling.rows

    def select_tokens(self, rows: list[int]) -> Tensor:
        """The sampled tokens of some of its rows on the device, without waiting; others can follow them."""
        if rows == self._rows:
            return self._tokens
        (index,) = to_device([np.array(rows)], self._tokens.device)
        return self._tokens.index_select(0, index)

    def read_selected(self, rows: list[int]) -> list[int]:
        """Wait for the step; return what `select_tokens` returns, on the host.

        If several tokens of a greedy row are equally likely, it can differ from `read`.
        """
        table = self._results(rows)
        return table[_GREEDY_TOKENS if len(table) == _DRAWN_TOKENS else _DRAWN_TOKENS].long().tolist()

    def read(self, rows: list[int]) -> Tensor:
        """Wait for the step; return the tokens of some of its rows, as [rows, 1]. Raises RowsFailed for those."""
        return _read_table(self._results(rows), rows, self._drawn_rows)

    def _results(self, rows: list[int]) -> Tensor:
        """The results of some rows on the host."""
        return self._table[:, : len(rows)] if rows == self._rows else self._table[:, rows]

    @functools.cached_property
    def _table(self) -> Tensor:
        """The results on the host, with those of the rows of padding."""
        return self._copy.read()


class CapturedSteps:
    """Graphs of the decode steps of one decoder, whose logits have `size` elements.

    A shape is a number of rows, the number of pages of the longest request, and what is sampled. Rows and pages are
    powers of two.
    """

    def __init__(
        self,
        store: KVStore,
        embed: Callable[[Tensor], Tensor],
        forward: Forward,
        size: int,
        *,
        max_rows: int = MAX_ROWS,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        self._store, self._embed, self._forward, self._size = store, embed, forward, size
        self._scratch = PagedKV(store, SamplerState())
        extend_caches(store, [self._scratch], [1])
        self.max_rows = min(padded_size(max_rows), MAX_ROWS)
        self.graphs = DeviceGraphs[tuple[int, int, int]](
            store.device, "decode steps", max_buffer_bytes=max_buffer_bytes
        )
        """By number of rows, number of pages, and `CapturedSampling.entries`."""
        self.outputs: dict[int, tuple[Tensor, Tensor]] = {}
        """Logits and hidden states, by number of rows. All graphs with these rows write to them."""
        self._last_launched: CapturedSampling | None = None
        """Sampling of the last step that was launched ahead: most have the same parameters."""

    @classmethod
    def create(
        cls, store: KVStore, embed: Callable[[Tensor], Tensor], forward: Forward, size: int, **limits: int
    ) -> Self | None:
        """Graphs for a decoder, none of them captured; None if its device has no graphs."""
        if not can_capture(store.device):
            return None
        steps = cls(store, embed, forward, size, **limits)
        if store.backend.split_positions:
            steps._run_scratch(store.backend.split_positions)
        return steps

    def run(
        self, tokens: Tensor, caches: Sequence[PagedKV], params: Sequence[Sampling], *, is_copied: bool
    ) -> Step | None:
        """A step of one token per request, whose slot is allocated; None if no graph can do it. Raises RowsFailed.

        Unless they are copied, the next step overwrites logits and hidden states.
        """
        count, rows = len(caches), padded_size(len(caches))
        sampling = CapturedSampling.create(self._size, params, [cache.sampler for cache in caches])
        is_sampled = sampling is not None
        if sampling is None:
            sampling = CapturedSampling(self._size, [Sampling()] * count, [])
        pages = self._pages(caches)
        graph = self._find_graph(caches, pages, sampling)
        if graph is None:
            return None
        keys = sampling.next_draws() if sampling.rows else _NO_DRAWS  # after this, the step must not be repeated
        table, _ = self._replay(graph, tokens, caches, pages, sampling, keys)
        sampled = _read_table(table.cpu()[:, :count], [*range(count)], sampling.rows) if is_sampled else None
        logits, hidden = (output[:count] for output in self.outputs[rows])
        return (sampled, logits.clone(), hidden.clone()) if is_copied else (sampled, logits, hidden)

    def launch(self, tokens: Tensor, caches: Sequence[PagedKV], params: Sequence[Sampling]) -> LaunchedStep | None:
        """Launch a step without reading its results, and without counting its draws; None if no graph can do it.

        The tokens can be on the device, and are as many as the caches or more. No parameter depends on the history.
        """
        samplers = [cache.sampler for cache in caches]
        sampling = self._last_launched
        if sampling is None or not sampling.continue_with(params, samplers):
            sampling = self._last_launched = CapturedSampling.create(self._size, params, samplers)
        pages = self._pages(caches)
        graph = None if sampling is None else self._find_graph(caches, pages, sampling)
        if graph is None or sampling is None:
            return None
        keys = sampling.peek_draws() if sampling.rows else _NO_DRAWS
        table, next_tokens = self._replay(graph, tokens, caches, pages, sampling, keys)
        return LaunchedStep(table, next_tokens, sampling, len(caches))

    def _find_graph(self, caches: Sequence[PagedKV], pages: int, sampling: CapturedSampling) -> CapturedGraph | None:
        """The graph for a batch, captured if it is new; None if there can be none."""
        rows = padded_size(len(caches))
        if rows > self.max_rows or not self._has_room(rows, pages):
            return None
        graph = self.graphs.find((rows, pages, sampling.entries))
        return self._capture(self._pad(caches), pages, sampling) if graph is None else graph

    def _replay(
        self,
        graph: CapturedGraph,
        tokens: Tensor,
        caches: Sequence[PagedKV],
        pages: int,
        sampling: CapturedSampling,
        keys: np.ndarray,
    ) -> tuple[Tensor, Tensor]:
        """Launch a graph for a batch; returns its table of results and its tokens, which the next replay overwrites."""
        rows, is_on_host = padded_size(len(caches)), tokens.device.type == "cpu"
        host_tokens = torch.zeros(rows, dtype=torch.int64)
        if is_on_host:
            host_tokens[: len(tokens)] = tokens
        batch = self._batch(self._pad(caches), pages)

        def prepare(arrays: Sequence[Tensor]) -> None:
            if not is_on_host:
                (arrays[0] if len(tokens) == rows else arrays[0][: len(tokens)]).copy_(tokens)
            self._prepare(batch, arrays)

        return graph.run([host_tokens, *batch.arrays, *sampling.arrays(rows, keys)], prepare)

    def _pad(self, caches: Sequence[PagedKV]) -> list[PagedKV]:
        return [*caches, *[self._scratch] * (padded_size(len(caches)) - len(caches))]

    def _pages(self, caches: Sequence[PagedKV]) -> int:
        """Number of pages of the longest request, padded."""
        return padded_size(-(-max([cache.table.length for cache in caches]) // self._store.pool.page_size))

    def free(self) -> None:
        """Release the scratch page."""
        self._scratch.free()

    def capture_largest(self, pages: int) -> None:
        """Capture a sampled step with the most rows, all of them padding. It shows how much memory graphs need."""
        rows = self.max_rows
        sampling = CapturedSampling(self._size, [Sampling(temperature=1.0)] * rows, [])
        sampling.entries = ENTRY_COUNTS[0]
        self._capture([self._scratch] * rows, pages, sampling)

    @torch.inference_mode()
    def _run_scratch(self, positions: int) -> None:
        """Run a step of a row of padding as one of a request with this number of positions, without a graph."""
        batch = self._batch([self._scratch], padded_size(-(-positions // self._store.pool.page_size)))
        tokens, last = batch.move(self._store.device, *torch.zeros((2, 1), dtype=torch.int64))
        with running(batch):
            self._forward(self._embed(tokens)[None], batch.positions[None], last)

    def _has_room(self, rows: int, pages: int) -> bool:
        """Whether gathered pages, if the attention gathers them, are not more than those of the KV cache."""
        return self._store.backend is not TORCH_ATTENTION or rows * pages <= self._store.pool.count

    def _batch(self, caches: Sequence[PagedKV], pages: int) -> DecodeBatch:
        batch = DecodeBatch(self._store, caches)
        batch.min_positions = pages * self._store.pool.page_size
        return batch

    def _prepare(self, batch: DecodeBatch, arrays: Sequence[Tensor]) -> object:
        """Let the attention backend plan a batch outside of the graph. Its arrays on the device follow the tokens."""
        batch.arrays = arrays[1 : 1 + len(batch.arrays)]
        return self._store.backend.prepare_graph(batch)

    def _capture(self, caches: Sequence[PagedKV], pages: int, sampling: CapturedSampling) -> CapturedGraph | None:
        """Capture the step of batches like this one."""
        rows, device = len(caches), self._store.device
        described = self._batch(caches, pages)
        batch_arrays = described.arrays

        def step(arrays: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            tokens, others, params = arrays[0], arrays[1 : 1 + len(batch_arrays)], arrays[1 + len(batch_arrays) :]
            batch = self._batch(caches, pages)  # a new one: an earlier one can have computed masks not in the graph
            batch.arrays = [*others]
            with running(batch):
                last = torch.arange(rows, device=device)
                results = self._forward(self._embed(tokens)[None], batch.positions[None], last)
            if rows not in self.outputs:  # in the first run, which is not captured
                self.outputs[rows] = torch.empty_like(results[0]), torch.empty_like(results[1])
            for output, result in zip(self.outputs[rows], results, strict=True):
                output.copy_(result)
            parts = GraphSampler(params, self._size, device).sample(results[0])
            tokens = parts[_GREEDY_TOKENS if len(parts) == _DRAWN_TOKENS else _DRAWN_TOKENS].long()
            return torch.stack([part.double() for part in parts]), tokens

        arrays = [torch.zeros(rows, dtype=torch.int64), *batch_arrays, *sampling.arrays(rows, _NO_DRAWS)]
        prepare = functools.partial(self._prepare, described)
        return self.graphs.capture((rows, pages, sampling.entries), arrays, step, prepare)
