"""Attention over paged memory, for transformers models as they are.

All tokens of a batch are one row. transformers hands every layer's queries, keys and values to the function registered
here; it writes keys and values to their pages and attends, for each request, to that request's pages. Nothing of the
model is rewritten: the library's own layers compute everything else.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from mstar.nn.pages import Pool, Table
from mstar.walk.states import KV

PAGED = "mstar_paged"
"""The name of this attention among transformers' implementations."""


class Store:
    """Keys and values of all layers of one component, in pages."""

    def __init__(self, pool: Pool, layers: int) -> None:
        self.pool = pool
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's memory as [positions, heads, size]; its shape is learnt from the first keys and values."""
        keys, values = self._keys[index], self._values[index]
        if keys is None or values is None:
            positions = self.pool.count * self.pool.page_size
            keys = self._keys[index] = key.new_zeros((positions, *key.shape[1:]))
            values = self._values[index] = value.new_zeros((positions, *value.shape[1:]))
        return keys, values

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole pages of all layers."""
        size = self.pool.page_size
        for memory in (*self._keys, *self._values):
            if memory is not None:
                for source, target in copies:
                    memory[target * size : (target + 1) * size] = memory[source * size : (source + 1) * size]


class PagedKV(KV):
    """The attention cache of one request: a table of pages in its component's store."""

    def __init__(self, store: Store, table: Table) -> None:
        self.store = store
        self.table = table
        self._gone = weakref.finalize(self, store.pool.free, table)

    def fork(self) -> PagedKV:
        """A cache that shares the pages of this one until either is extended."""
        return PagedKV(self.store, self.store.pool.fork(self.table))

    def free(self) -> None:
        """Give the pages back now."""
        self._gone()


@dataclass(frozen=True, slots=True)
class Row:
    """One request in a forward: which of its tokens are new, and where all of its positions lie in memory."""

    first: int
    count: int
    positions: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What the attention of every layer needs to know of one forward."""

    store: Store
    rows: list[Row]
    written: Tensor
    """For each new token, where its keys and values go."""


def extend(store: Store, caches: list[PagedKV], counts: list[int]) -> tuple[Batch, Tensor]:
    """Make room for new tokens of several requests; the batch, and the position of each token in its request."""
    size = store.pool.page_size
    rows: list[Row] = []
    places: list[Tensor] = []
    at: list[Tensor] = []
    first = 0
    for cache, count in zip(caches, counts, strict=True):
        table = cache.table
        start = table.length
        store.copy(store.pool.extend(table, count))
        pages = torch.tensor(table.pages)
        positions = (pages[:, None] * size + torch.arange(size)).reshape(-1)[: table.length]
        rows.append(Row(first, count, positions))
        places.append(positions[start:])
        at.append(torch.arange(start, table.length))
        first += count
    return Batch(store, rows, torch.cat(places)), torch.cat(at)


def attend(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - rows make their own
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    paged: Batch,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, heads, tokens, size] in, [1, tokens, heads, size] out.

    `paged` is ours: what is passed to a model's forward by a name it does not know reaches its attention.
    """
    queries = query[0]
    keys, values = paged.store.layer(module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys[paged.written] = key[0].transpose(0, 1)
    values[paged.written] = value[0].transpose(0, 1)
    outputs = torch.empty_like(queries)
    for row in paged.rows:
        mine = slice(row.first, row.first + row.count)
        outputs[:, mine] = scaled_dot_product_attention(
            queries[:, mine],
            keys[row.positions].transpose(0, 1),
            values[row.positions].transpose(0, 1),
            attn_mask=_mask(row, sliding_window),
            scale=scaling,
            enable_gqa=True,
        )
    return outputs.transpose(0, 1)[None], None


def _mask(row: Row, sliding_window: int | None) -> Tensor | None:
    """Which positions each new token may see: those up to its own, and of a sliding window only the last."""
    total = len(row.positions)
    if row.count == 1 and (sliding_window is None or total <= sliding_window):
        return None
    own = torch.arange(total - row.count, total)[:, None]
    seen = torch.arange(total)[None]
    mask = seen <= own
    return mask if sliding_window is None else mask & (seen > own - sliding_window)


AttentionInterface.register(PAGED, attend)
AttentionMaskInterface.register(PAGED, lambda *_args, **_kwargs: None)  # attend() makes its own
