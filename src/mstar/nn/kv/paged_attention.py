"""Paged attention for unmodified transformers models.

All tokens of a ragged batch are one row. Every layer writes its keys and values to their pages and attends, for each
request, to the pages in its page table; the attention backend of the KV store does both.
`mstar.nn.kv.attention_interface` registers it with transformers, which takes seconds to import and is not needed for a
cached graph. All other layers are those of transformers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstar.nn import native
from mstar.nn.kv.attention_backend import AttentionPlan
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.recurrent_state import RecurrentGroup, Slot
from mstar.nn.kv.torch_attention import Group
from mstar.nn.lm.adapters.adapter_batch import AdapterBatch
from mstar.nn.staging import to_device

PAGED_ATTENTION = "mstar_paged"
"""Name of this attention implementation in transformers."""


class AttentionView:
    """Read access of the tokens of one forward to the KV caches of their requests."""

    def __init__(self, store: KVStore, caches: Sequence[PagedKV], counts: Sequence[int] | np.ndarray) -> None:
        self.store = store
        self.caches = caches
        self.counts = np.asarray(counts)
        rows, lengths = np.asarray([(cache.row, cache.table.length) for cache in caches]).T
        self.request = torch.from_numpy(rows.repeat(self.counts))
        self.seen = torch.from_numpy(lengths.repeat(self.counts))

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All requests in groups: those with one token together, the others one group each."""
        single, others = (self.counts == 1).nonzero()[0].tolist(), (self.counts != 1).nonzero()[0].tolist()
        return [Group(self, rows) for rows in (single, *([row] for row in others)) if rows]

    is_causal: bool = False
    """Whether a token sees the positions up to its own; otherwise all of its request."""
    min_positions: int = 0
    """Number of positions that the plan has room for at least, so that its shape does not depend on the requests."""

    @functools.cached_property
    def plan(self) -> Sequence[AttentionPlan]:
        """What the attention backend computes once for all layers."""
        return self.store.backend.plan(self)

    @functools.cached_property
    def pages(self) -> native.Pages:
        """Page table and tokens for the native kernels."""
        table, places = self.store.page_table.tensor, getattr(self, "places", None)
        return native.Pages(
            table=table.data_ptr(),
            width=table.shape[1],
            page_size=self.store.pool.page_size,
            request=self.request.data_ptr(),
            seen=self.seen.data_ptr(),
            places=None if places is None else places.data_ptr(),
            tokens=len(self.request),
        )

    @functools.cached_property
    def adapters(self) -> AdapterBatch | None:
        """LoRA adapters of the tokens; None if no request has one."""
        return AdapterBatch.of([cache.adapter for cache in self.caches], self.counts)

    slots_before: Sequence[Slot | None]
    """Slots with the recurrent states of each request before this forward; None at its start."""
    slots_after: Sequence[Slot]
    """Slots for the recurrent states of each request after this forward."""

    @functools.cached_property
    def recurrent_groups(self) -> list[RecurrentGroup]:
        """Requests that a recurrent layer runs together: one new token after others. Every other one runs alone."""
        if self.store.states is None:
            return []
        is_single = [
            count == 1 and slot is not None for count, slot in zip(self.counts, self.slots_before, strict=True)
        ]
        single = [row for row, together in enumerate(is_single) if together]
        others = [[row] for row, together in enumerate(is_single) if not together]
        return [
            RecurrentGroup(
                self.tokens_of(rows), [self.slots_before[row] for row in rows], [self.slots_after[row] for row in rows]
            )
            for rows in ([single, *others] if single else others)
        ]

    def tokens_of(self, rows: list[int]) -> Tensor:
        """[rows, new]: token indices of rows with equal numbers of tokens."""
        lasts, count = self.counts.cumsum(), int(self.counts[rows[0]])
        return torch.from_numpy(lasts[rows])[:, None] + torch.arange(-count, 0)

    def places_of(self, rows: list[int]) -> Tensor:
        """[rows, longest]: slots of all positions of the requests of some rows; 0 for released ones and padding, which
        are masked."""
        caches, size = [self.caches[row] for row in rows], self.store.pool.page_size
        lengths = np.array([cache.table.length for cache in caches])
        positions = np.arange(lengths.max())
        table = self.store.page_table.array[[cache.row for cache in caches]]
        places = table[:, positions // size].astype(np.int64) * size + positions % size
        released = np.array([cache.table.forgotten * size for cache in caches])
        places[(positions >= lengths[:, None]) | (positions < released[:, None])] = 0
        return torch.from_numpy(places)


class AttentionBatch(AttentionView):
    """Attention metadata of one forward, for all layers.

    Each token has a request, a number of visible positions, and a slot for its keys and values.
    """

    def __init__(self, store: KVStore, caches: Sequence[PagedKV], counts: Sequence[int], *, is_causal: bool) -> None:
        super().__init__(store, caches, counts)
        size = store.pool.page_size
        ends = self.counts.cumsum()
        firsts = np.asarray([cache.table.length for cache in caches]) - ends
        positions = np.arange(ends[-1]) + firsts.repeat(self.counts)
        places = (
            store.page_table.array[self.request.numpy(), positions // size].astype(np.int64) * size + positions % size
        )
        self.positions, self.places = torch.from_numpy(positions), torch.from_numpy(places)
        self.is_causal = is_causal
        if is_causal:
            self.seen = self.positions + 1

    def move(self, device: torch.device, *others: Tensor) -> list[Tensor]:
        """Copy the batch to the device of its network, with other tensors of its step, which are returned.

        Integers are copied together. A CPU reads all of it where it is.
        """
        if device.type == "cpu":
            return [*others]
        integers = [number for number, tensor in enumerate(others) if tensor.dtype == torch.int64]
        arrays = [*(others[number] for number in integers), *self.arrays]
        moved = to_device([array.numpy() for array in arrays], device)
        self.arrays = moved[len(integers) :]
        results = iter(moved)
        return [next(results) if number in integers else tensor.to(device) for number, tensor in enumerate(others)]

    @property
    def arrays(self) -> list[Tensor]:
        """All integers that describe the batch on the device of its network."""
        return [self.positions, self.places, *(array for part in self._parts for array in part.arrays)]

    @arrays.setter
    def arrays(self, arrays: Sequence[Tensor]) -> None:
        self.positions, self.places, *others = arrays
        rest = iter(others)
        for part in self._parts:
            part.arrays = tuple(next(rest) for _ in part.arrays)

    @property
    def _parts(self) -> list[AttentionPlan | RecurrentGroup]:
        return [*self.plan, *self.recurrent_groups]

    def part(self, first: int, last: int) -> AttentionBatch:
        """The batch of some of its tokens, each of which attends by itself."""
        part = copy.copy(self)
        part.counts = self.counts[:0]
        part.positions, part.places = self.positions[first:last], self.places[first:last]
        part.request, part.seen = self.request[first:last], self.seen[first:last]
        part.adapters = None if self.adapters is None else self.adapters.part(first, last)
        return part


class DecodeBatch(AttentionBatch):
    """A batch with one token per request (decode). Most steps are, and they are short, so building it must be fast."""

    def __init__(self, store: KVStore, caches: Sequence[PagedKV]) -> None:
        size, self.store, self.caches = store.pool.page_size, store, caches
        columns = np.empty((4, len(caches)), dtype=np.int64)
        rows, seen, positions, places = columns
        rows[:] = [cache.row for cache in caches]
        seen[:] = [cache.table.length for cache in caches]
        np.subtract(seen, 1, out=positions)
        np.add(store.page_table.array[rows, positions // size] * np.int64(size), positions % size, out=places)
        self.request, self.seen, self.positions, self.places = torch.from_numpy(columns).unbind()
        self.is_causal = True

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of tokens of each request."""
        return np.ones(len(self.caches), dtype=np.int64)


def extend_caches(
    store: KVStore, caches: Sequence[PagedKV], counts: Sequence[int], *, is_causal: bool = True
) -> AttentionBatch:
    """Allocate slots for new tokens of several requests. Raises OutOfPages without changing any of them."""
    slots = allocate_tokens(store, caches, counts)
    return describe_batch(store, caches, counts, slots, is_causal=is_causal)


def describe_batch(
    store: KVStore, caches: Sequence[PagedKV], counts: Sequence[int], slots: list[Slot], *, is_causal: bool = True
) -> AttentionBatch:
    """The batch of the last tokens of several requests, for which `allocate_tokens` has returned these slots."""
    is_decode = max(counts) == 1 == min(counts)
    batch = DecodeBatch(store, caches) if is_decode else AttentionBatch(store, caches, counts, is_causal=is_causal)
    if slots:
        batch.slots_before, batch.slots_after = [cache.slot for cache in caches], slots
        for cache, slot in zip(caches, slots, strict=True):
            cache.slot = slot
    return batch


def allocate_tokens(store: KVStore, caches: Sequence[PagedKV], counts: Sequence[int]) -> list[Slot]:
    """Allocate slots for new tokens; returns new slots for the recurrent states of the requests, if there are any."""
    pool = store.pool
    if store.window is not None:
        for cache in caches:
            pool.forget(cache.table, cache.table.length - store.window)
    needed = pool.pages_needed([cache.table for cache in caches], counts)
    pool.require_free(sum(needed))
    slots = store.states.allocate(len(caches)) if store.states is not None else []
    for cache, count, pages in zip(caches, counts, needed, strict=True):
        if not pages:
            cache.table.length += count
            continue
        before = len(cache.table.pages)
        copies = pool.extend(cache.table, count)
        store.copy(copies)
        store.page_table.write(cache.row, cache.table.pages, before - len(copies))
    return slots


_running: list[AttentionBatch] = []
"""Stack of the batches whose forward runs; the last entry is current. An engine has one thread."""


@contextmanager
def running(batch: AttentionBatch) -> Iterator[None]:
    """Make this batch the current one for paged attention."""
    _running.append(batch)
    try:
        yield
    finally:
        _running.pop()


def current_batch() -> AttentionBatch:
    """The batch whose forward runs."""
    return _running[-1]


def attend_running(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float, window: int) -> Tensor:
    """Paged attention of the current batch: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    batch = _running[-1]
    backend = batch.store.backend
    backend.write(batch, key, value, layer)
    return backend.attend(batch, query, layer, scaling, window)


def attend_general(  # noqa: PLR0913, PLR0917 - the rule of a layer
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: int,
    scaling: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Do the same with a soft cap of the scores and attention sinks. It is another function, so that the patterns of
    graph fusion, whose kernels have neither, do not match it."""
    batch = _running[-1]
    backend = batch.store.backend
    backend.write(batch, key, value, layer)
    return backend.attend(batch, query, layer, scaling, window, softcap, sinks)


def attend_fused_qkv(  # noqa: PLR0913, PLR0917 - it replaces several calls
    joined: Tensor, cosines: Tensor, sines: Tensor, layer: int, scaling: float, window: int, key_heads: int, size: int
) -> Tensor:
    """Rotary embedding and paged attention for the output of a fused QKV projection.

    [1, tokens, (heads + 2 key_heads) * size] in, [1, tokens, heads * size] out.
    """
    batch = _running[-1]
    memory = batch.store.keys[layer], batch.store.values[layer]
    if not memory[0].numel():
        heads = joined.unflatten(2, (-1, size)).transpose(1, 2)
        query, key, value = heads.split([heads.shape[1] - 2 * key_heads, key_heads, key_heads], 1)
        query, key = native.rotate(query, cosines, sines), native.rotate(key, cosines, sines)
        return attend_running(query, key, value, layer, scaling, window).flatten(2)
    return native.attend_joined(joined, (cosines, sines), memory, batch.pages, (scaling, window))


def write_keys_values(batch: AttentionBatch, key: Tensor, value: Tensor, layer: int) -> None:
    """Write the keys and values of all tokens, [1, heads, tokens, size], to their slots."""
    batch.store.backend.write(batch, key, value, layer)


def attend_pages(view: AttentionView, query: Tensor, layer: int, scaling: float, window: int) -> Tensor:
    """Attention over the pages: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    return view.store.backend.attend(view, query, layer, scaling, window)


DIRECT_CALLS: dict[Any, Any] = {}
"""Functions that replace custom ops in a captured graph: the dispatcher would take longer than the call."""
