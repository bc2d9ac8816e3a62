"""Paged cross-attention of encoder-decoders: keys and values of the encoder states, in pages of the same pool.

A request has a second page table for them. Every token attends to all encoder states of its request, which are written
once. `mstar.nn.lm.encoder_decoder` runs the network; self-attention is that of `mstar.nn.kv.paged_attention`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mstar.nn.kv import paged_attention
from mstar.nn.kv.kv_cache import ExportedKV, KVStore, PagedKV
from mstar.nn.kv.page_pool import PageTable
from mstar.nn.kv.paged_attention import DIRECT_CALLS, AttentionBatch, AttentionView, attend_pages, write_keys_values
from mstar.nn.lm.sampler import SamplerState

CROSS_ATTENTION = "mstar_cross_attention"
"""Name of this attention implementation in transformers."""


class CrossAttentionKV(PagedKV):
    """KV cache of one request of an encoder-decoder: self-attention, and a second cache for cross-attention."""

    def __init__(self, store: KVStore, sampler: SamplerState, table: PageTable | None = None) -> None:
        super().__init__(store, sampler, table)
        self._page_keys = None  # no prefix cache: keys and values of a token depend on the encoder states
        self.cross_attention_cache = PagedKV(store, SamplerState())

    def fork(self) -> CrossAttentionKV:
        """A copy that shares all pages until one of the two is extended (copy on write)."""
        forked = super().fork()
        forked.cross_attention_cache = self.cross_attention_cache.fork()
        return forked

    def snapshot(self) -> Any:
        """The current position of both caches."""
        return super().snapshot(), self.cross_attention_cache.snapshot()

    def rollback(self, snapshot: Any) -> None:
        """Drop the inputs since the snapshot, in both caches."""
        own_snapshot, cross_snapshot = snapshot
        super().rollback(own_snapshot)
        self.cross_attention_cache.rollback(cross_snapshot)

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
        return dataclasses.replace(super().export(), cross_attention_cache=self.cross_attention_cache.export())

    def load(self, exported: ExportedKV) -> None:
        """Load exported caches into this new one. Raises OutOfPages."""
        assert exported.cross_attention_cache is not None
        self.store.pool.require_capacity(
            self.pages_needed_for(exported)
            + self.cross_attention_cache.pages_needed_for(exported.cross_attention_cache)
        )
        self._reserve(exported.length, exported.cross_attention_cache.length)
        super().load(exported)
        self.cross_attention_cache.load(exported.cross_attention_cache)
        self._page_keys = None

    def _reserve(self, tokens: int, encoder_positions: int) -> None:
        pool, cross_table = self.store.pool, self.cross_attention_cache.table
        pool.require_free(pool.pages_needed(self.table, tokens) + pool.pages_needed(cross_table, encoder_positions))


_writing: list[AttentionBatch] = []
"""Stack of the batches whose encoder states are written; the last entry is current."""
_reading: list[AttentionView] = []
"""Stack of the cross-attention views of running forwards; the last entry is current."""


@contextmanager
def writing_cross_kv(batch: AttentionBatch) -> Iterator[None]:
    """Make cross-attention write its keys and values to this batch. The outputs of the forward are meaningless."""
    _writing.append(batch)
    try:
        yield
    finally:
        _writing.pop()


@contextmanager
def reading_cross_kv(view: AttentionView) -> Iterator[None]:
    """Make cross-attention read the keys and values of this view."""
    _reading.append(view)
    try:
        yield
    finally:
        _reading.pop()


def cross_attend(query: Tensor, layer: int, scaling: float) -> Tensor:
    """Paged cross-attention: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    return attend_pages(_reading[-1], query, layer, scaling, 0)


_cross_attend_op = torch.library.custom_op("mstar::cross_attend", cross_attend, mutates_args=())
DIRECT_CALLS[torch.ops.mstar.cross_attend.default] = cross_attend


@_cross_attend_op.register_fake
def _(query: Tensor, layer: int, scaling: float) -> Tensor:  # noqa: ARG001
    return query.new_empty((1, query.shape[2], query.shape[1], query.shape[3]))


def cross_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function in the interface of transformers. Cross-attention is the one that is not causal."""
    if _writing:
        if not module.is_causal:
            write_keys_values(_writing[-1], key, value, module.layer_idx)
        return query.transpose(1, 2), None
    if module.is_causal:
        window = module.config.sliding_window  # set by EncoderDecoder; transformers does not pass it
        return paged_attention.paged_attention_forward(
            module, query, key, value, attention_mask, scaling, window, **others
        )
    run = torch.ops.mstar.cross_attend if torch.compiler.is_exporting() else cross_attend
    return run(query, module.layer_idx, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(CROSS_ATTENTION, cross_attention_forward)
AttentionMaskInterface.register(CROSS_ATTENTION, lambda *_args, **_kwargs: None)  # the batch has its own mask
