"""What requests of an encoder-decoder heard: its keys and values lie in pages of the same pool, in a second table.

Every token sees all that its request heard, in every layer, and nobody writes it again. How a network is made to hear
and to write is in `mstar.nn.listener`; attention to what was read before is that of `mstar.nn.paged`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mstar.nn import paged
from mstar.nn.chooser import Chooser
from mstar.nn.paged import DIRECT, Batch, View, attend_over, write
from mstar.nn.pages import Table
from mstar.nn.store import Moved, PagedKV, Store

HEARD = "mstar_heard"
"""The name of this attention among transformers' implementations."""


class HeardKV(PagedKV):
    """The cache of one request: what it has read, and beside it, as a cache of its own, what it heard."""

    def __init__(self, store: Store, chooser: Chooser, table: Table | None = None) -> None:
        super().__init__(store, chooser, table)
        self._keys = None  # the same tokens after another sound are not the same: its pages are not shared by content
        self.heard = PagedKV(store, Chooser())

    def fork(self) -> HeardKV:
        """A cache that shares all pages of this one until either is extended."""
        forked = super().fork()
        forked.heard = self.heard.fork()
        return forked

    def mark(self) -> Any:
        """Where it is now."""
        return super().mark(), self.heard.mark()

    def go_back(self, mark: Any) -> None:
        """Forget what was read and heard since the mark."""
        read, heard = mark
        super().go_back(read)
        self.heard.go_back(heard)

    def free(self) -> None:
        """Give the pages back now."""
        super().free()
        self.heard.free()

    def leave(self) -> None:
        """Give the pages up, for both."""
        super().leave()
        self.heard.leave()

    def come_back(self) -> None:
        """Take pages again, for both or for none. Raises OutOfPages."""
        self._reserve(self._left, self.heard._left)
        self.heard.come_back()
        super().come_back()

    def export(self) -> Moved:
        """All of it as a value, for another component like this one."""
        return dataclasses.replace(super().export(), heard=self.heard.export())

    def load(self, moved: Moved) -> None:
        """Be what was exported. Only for a fresh cache. Raises OutOfPages."""
        assert moved.heard is not None
        self.store.pool.must_hold(self.pages_of(moved) + self.heard.pages_of(moved.heard))
        self._reserve(moved.length, moved.heard.length)
        super().load(moved)
        self.heard.load(moved.heard)
        self._keys = None

    def _reserve(self, read: int, heard: int) -> None:
        pool = self.store.pool
        pool.reserve(pool.needed(self.table, read) + pool.needed(self.heard.table, heard))


_heard: list[Batch] = []
"""What is being heard, as the last entry."""
_recalled: list[View] = []
"""What the tokens of the forward that runs have heard, as the last entry."""


@contextmanager
def hearing(batch: Batch) -> Iterator[None]:
    """Inside it, cross-attention writes the keys and values it is given; what a forward gives is of no use."""
    _heard.append(batch)
    try:
        yield
    finally:
        _heard.pop()


@contextmanager
def recalling(view: View) -> Iterator[None]:
    """Inside it, cross-attention reads what was heard."""
    _recalled.append(view)
    try:
        yield
    finally:
        _recalled.pop()


def recall_now(query: Tensor, layer: int, scaling: float) -> Tensor:
    """Attention to what was heard: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    return attend_over(_recalled[-1], query, layer, scaling, 0)


_recall_op = torch.library.custom_op("mstar::recall", recall_now, mutates_args=())
DIRECT[torch.ops.mstar.recall.default] = recall_now


@_recall_op.register_fake
def _(query: Tensor, layer: int, scaling: float) -> Tensor:  # noqa: ARG001
    return query.new_empty((1, query.shape[2], query.shape[1], query.shape[3]))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function. Cross-attention is what is not causal."""
    if _heard:
        if not module.is_causal:
            write(_heard[-1], key, value, module.layer_idx)
        return query.transpose(1, 2), None
    if module.is_causal:
        window = module.config.sliding_window  # which no encoder-decoder of the library gives
        return paged.attend(module, query, key, value, attention_mask, scaling, window, **others)
    run = torch.ops.mstar.recall if torch.compiler.is_exporting() else recall_now
    return run(query, module.layer_idx, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(HEARD, attend)
AttentionMaskInterface.register(HEARD, lambda *_args, **_kwargs: None)  # a batch has its own
