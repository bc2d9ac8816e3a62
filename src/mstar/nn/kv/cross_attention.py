"""Paged cross-attention of encoder-decoders: keys and values of the encoder states, in pages.

A request has a second page table for them, in the same pool, or in another one if cross-attention has other heads.
Every token attends to all encoder states of its request, which are written once. `mstar.nn.lm.encoder_decoder` runs
the network; self-attention is that of `mstar.nn.kv.paged_attention`.
`mstar.nn.kv.cross_attention_interface` registers it with transformers, which a cached graph does not need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mstar.nn.kv.kv_cache import ExportedKV, KVStore, PagedKV
from mstar.nn.kv.page_pool import PageTable
from mstar.nn.kv.paged_attention import AttentionView, attend_pages
from mstar.nn.lm.sampler_state import SamplerState

CROSS_ATTENTION = "mstar_cross_attention"
"""Name of this attention implementation in transformers."""


class CrossAttentionKV(PagedKV):
    """KV cache of one request of an encoder-decoder: self-attention, and a second cache for cross-attention."""

    def __init__(self, store: KVStore, sampler: SamplerState, table: PageTable | None = None) -> None:
        super().__init__(store, sampler, table)
        self._page_keys = None  # no prefix cache: keys and values of a token depend on the encoder states
        self.cross_attention_cache = PagedKV(store.cross_attention, SamplerState())
        self.forgettings: list[tuple[int, int]] = []
        """When encoder positions at the start were released: after how many tokens, and how many there were then.
        Recomputation needs it, because the tokens before read them."""

    @property
    def extra_pages(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - it is read only
        """Number of pages of the second cache in the pool of the first."""
        cross = self.cross_attention_cache
        return len(cross.table.pages) if cross.store is self.store else 0

    @property
    def forgotten(self) -> int:
        """Number of encoder positions at the start whose keys and values were released."""
        return self.forgettings[-1][1] if self.forgettings else 0

    @property
    def encoder_positions(self) -> int:
        """Number of encoder positions, forgotten ones included."""
        return self.forgotten + self.cross_attention_cache.table.length

    def forget_encoder_states(self, before: int) -> None:
        """Release the pages of the encoder positions before this one. Attention does not depend on their order, so the
        others move to the front of the cache. The encoder states themselves stay, to compute the keys again.
        """
        cross, positions, forgotten = self.cross_attention_cache, self.encoder_positions, self.forgotten
        cross.store.pool.forget(cross.table, min(before, positions - 1) - forgotten, moves_rest=True)
        if (released := positions - cross.table.length) > forgotten:
            cross.store.page_table.write(cross.row, cross.table.pages, 0)
            self.forgettings.append((self.table.length, released))

    def kept_encoder_states(self) -> Iterator[Tensor]:
        """The encoder states whose keys and values are in the cache, in the parts that were written."""
        skipped = self.forgotten
        for _, states, _ in self.cross_attention_cache.embeddings:
            if skipped < len(states):
                yield states[skipped:]
            skipped = max(0, skipped - len(states))

    def fork(self) -> CrossAttentionKV:
        """A copy that shares all pages until one of the two is extended (copy on write)."""
        forked = super().fork()
        forked.cross_attention_cache = self.cross_attention_cache.fork()
        forked.forgettings = [*self.forgettings]
        return forked

    def snapshot(self) -> Any:
        """The current position of both caches."""
        return super().snapshot(), self.cross_attention_cache.snapshot(), self.encoder_positions

    def rollback(self, snapshot: Any) -> None:
        """Drop the inputs since the snapshot, in both caches. What was forgotten since then stays so."""
        own_snapshot, (_, *cross_snapshot), encoder_positions = snapshot
        super().rollback(own_snapshot)
        self.cross_attention_cache.rollback((encoder_positions - self.forgotten, *cross_snapshot))

    def free(self) -> None:
        """Release the pages of both caches now."""
        super().free()
        self.cross_attention_cache.free()

    def evict(self) -> None:
        """Evict both caches."""
        super().evict()
        self.cross_attention_cache.evict()

    def restore(self) -> None:
        """Restore both caches or neither. Raises OutOfPages."""
        self._reserve(self._evicted_length, self.cross_attention_cache._evicted_length)
        self.cross_attention_cache.restore()
        super().restore()

    def export(self) -> ExportedKV:
        """Serializable copy of both caches, for migration."""
        cross = dataclasses.replace(self.cross_attention_cache.export(), forgettings=tuple(self.forgettings))
        return dataclasses.replace(super().export(), cross_attention_cache=cross)

    def load(self, exported: ExportedKV) -> None:
        """Load exported caches into this new one. Raises OutOfPages."""
        assert exported.cross_attention_cache is not None
        cross = self.cross_attention_cache
        needed = [self.pages_needed_for(exported), cross.pages_needed_for(exported.cross_attention_cache)]
        if cross.store is self.store:
            self.store.pool.require_capacity(sum(needed))
        else:  # each cache checks its own pages below
            cross.store.pool.require_capacity(needed[1])
        self._reserve(exported.length, exported.cross_attention_cache.length)
        super().load(exported)
        self.cross_attention_cache.load(exported.cross_attention_cache)
        self.forgettings = [*exported.cross_attention_cache.forgettings]
        self._page_keys = None

    def _reserve(self, tokens: int, encoder_positions: int) -> None:
        pool, cross = self.store.pool, self.cross_attention_cache
        if cross.store is self.store:
            pool.require_free(sum(pool.pages_needed([self.table, cross.table], [tokens, encoder_positions])))
            return
        for one, table, positions in ((pool, self.table, tokens), (cross.store.pool, cross.table, encoder_positions)):
            one.require_free(sum(one.pages_needed([table], [positions])))


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, [1, heads, positions, size] each."""
_collecting: list[dict[int, KeysValues]] = []
"""Stack of the dictionaries that collect the keys and values of encoder states; the last entry is current."""
_reading: list[AttentionView] = []
"""Stack of the cross-attention views of running forwards; the last entry is current."""
_recording: list[dict[int, Tensor]] = []
"""Stack of the dictionaries that record the queries of cross-attention; the last entry is current."""


@contextmanager
def collecting_cross_kv() -> Iterator[dict[int, KeysValues]]:
    """Make cross-attention add its keys and values, by layer, to this dictionary. Other outputs are meaningless."""
    _collecting.append({})
    try:
        yield _collecting[-1]
    finally:
        _collecting.pop()


def collected_cross_kv() -> dict[int, KeysValues] | None:
    """The dictionary that collects keys and values; None if cross-attention reads the pages."""
    return _collecting[-1] if _collecting else None


@contextmanager
def reading_cross_kv(view: AttentionView) -> Iterator[None]:
    """Make cross-attention read the keys and values of this view."""
    _reading.append(view)
    try:
        yield
    finally:
        _reading.pop()


@contextmanager
def recording_queries() -> Iterator[dict[int, Tensor]]:
    """Record the scaled queries of cross-attention, [heads, tokens, size], by layer. The attention runs as usual."""
    _recording.append({})
    try:
        yield _recording[-1]
    finally:
        _recording.pop()


def cross_attend(query: Tensor, layer: int, scaling: float) -> Tensor:
    """Paged cross-attention: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    if _recording:
        _recording[-1][layer] = query[0] * scaling
    return attend_pages(_reading[-1], query, layer, scaling, 0)
