"""What requests of an encoder-decoder heard: its keys and values lie in pages of the same pool, in a second table.

Every token sees all that its request heard, in every layer, and nobody writes it again. How a network is made to hear
and to write is in `mstar.nn.lm.encoder_decoder`; attention to what was read before is that of `mstar.nn.kv.paged_attention`.
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
"""The name of this attention among transformers' implementations."""


class CrossAttentionKV(PagedKV):
    """The cache of one request: what it has read, and beside it, as a cache of its own, what it heard."""

    def __init__(self, store: KVStore, sampler: SamplerState, table: PageTable | None = None) -> None:
        super().__init__(store, sampler, table)
        self._page_keys = (
            None  # the same tokens after another sound are not the same: its pages are not shared by content
        )
        self.cross_attention_cache = PagedKV(store, SamplerState())

    def fork(self) -> CrossAttentionKV:
        """A cache that shares all pages of this one until either is extended."""
        forked = super().fork()
        forked.cross_attention_cache = self.cross_attention_cache.fork()
        return forked

    def snapshot(self) -> Any:
        """Where it is now."""
        return super().snapshot(), self.cross_attention_cache.snapshot()

    def rollback(self, snapshot: Any) -> None:
        """Forget what was read and heard since the mark."""
        read, heard = snapshot
        super().rollback(read)
        self.cross_attention_cache.rollback(heard)

    def free(self) -> None:
        """Give the pages back now."""
        super().free()
        self.cross_attention_cache.free()

    def evict(self) -> None:
        """Give the pages up, for both."""
        super().evict()
        self.cross_attention_cache.evict()

    def restore(self) -> None:
        """Take pages again, for both or for none. Raises OutOfPages."""
        self._reserve(self._evicted_length, self.cross_attention_cache._evicted_length)
        self.cross_attention_cache.restore()
        super().restore()

    def export(self) -> ExportedKV:
        """All of it as a value, for another component like this one."""
        return dataclasses.replace(super().export(), cross_attention_cache=self.cross_attention_cache.export())

    def load(self, exported: ExportedKV) -> None:
        """Be what was exported. Only for a fresh cache. Raises OutOfPages."""
        assert exported.cross_attention_cache is not None
        self.store.pool.require_capacity(
            self.pages_needed_for(exported)
            + self.cross_attention_cache.pages_needed_for(exported.cross_attention_cache)
        )
        self._reserve(exported.length, exported.cross_attention_cache.length)
        super().load(exported)
        self.cross_attention_cache.load(exported.cross_attention_cache)
        self._page_keys = None

    def _reserve(self, read: int, heard: int) -> None:
        pool = self.store.pool
        pool.require_free(
            pool.pages_needed(self.table, read) + pool.pages_needed(self.cross_attention_cache.table, heard)
        )


_writing: list[AttentionBatch] = []
"""What is being heard, as the last entry."""
_reading: list[AttentionView] = []
"""What the tokens of the forward that runs have heard, as the last entry."""


@contextmanager
def writing_cross_kv(batch: AttentionBatch) -> Iterator[None]:
    """Inside it, cross-attention writes the keys and values it is given; what a forward gives is of no use."""
    _writing.append(batch)
    try:
        yield
    finally:
        _writing.pop()


@contextmanager
def reading_cross_kv(view: AttentionView) -> Iterator[None]:
    """Inside it, cross-attention reads what was heard."""
    _reading.append(view)
    try:
        yield
    finally:
        _reading.pop()


def cross_attend(query: Tensor, layer: int, scaling: float) -> Tensor:
    """Attention to what was heard: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
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
    """transformers' attention function. Cross-attention is what is not causal."""
    if _writing:
        if not module.is_causal:
            write_keys_values(_writing[-1], key, value, module.layer_idx)
        return query.transpose(1, 2), None
    if module.is_causal:
        window = module.config.sliding_window  # which no encoder-decoder of the library gives
        return paged_attention.paged_attention_forward(
            module, query, key, value, attention_mask, scaling, window, **others
        )
    run = torch.ops.mstar.cross_attend if torch.compiler.is_exporting() else cross_attend
    return run(query, module.layer_idx, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(CROSS_ATTENTION, cross_attention_forward)
AttentionMaskInterface.register(CROSS_ATTENTION, lambda *_args, **_kwargs: None)  # a batch has its own
