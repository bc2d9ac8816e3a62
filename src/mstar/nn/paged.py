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

from mstar.errors import LoadError, listed
from mstar.nn.pages import Pool, Table
from mstar.walk.states import KV

_NOT_DONE = ("softcap", "s_aux", "position_bias")
"""What some models ask of attention that would change its result if it were ignored."""
_FIX = "use a model of another family"

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
    """The attention cache of one request: a table of pages in its component's store, and what was read into it."""

    def __init__(self, store: Store, table: Table) -> None:
        self.store = store
        self.table = table
        self.history: list[int] = []
        """Every token it was extended by."""
        self.generator = torch.Generator()
        """Where its random numbers come from."""
        self._gone = weakref.finalize(self, store.pool.free, table)

    def fork(self) -> PagedKV:
        """A cache that shares the pages of this one until either is extended."""
        forked = PagedKV(self.store, self.store.pool.fork(self.table))
        forked.history = [*self.history]
        forked.generator.set_state(self.generator.get_state())
        return forked

    def free(self) -> None:
        """Give the pages back now."""
        self._gone()


class Group:
    """Requests in a forward that bring equally many tokens, so that one call attends for all of them."""

    def __init__(self, tokens: list[list[int]], positions: list[Tensor]) -> None:
        self.tokens = torch.tensor(tokens)
        """[requests, new]: which of the forward's tokens are theirs."""
        self.positions = torch.nn.utils.rnn.pad_sequence(positions, batch_first=True)
        """[requests, longest]: where the keys and values of each request lie; what is beyond its end is masked."""
        self._lengths = torch.tensor([len(own) for own in positions])
        self._masks: dict[int | None, Tensor] = {}

    def mask(self, sliding_window: int | None) -> Tensor:
        """[requests, 1, new, longest]: a token sees what is before it, of a sliding window only the last of that."""
        if sliding_window not in self._masks:
            new = self.tokens.shape[1]
            own = (self._lengths[:, None] - new + torch.arange(new))[:, None, :, None]
            seen = torch.arange(self.positions.shape[1])
            mask = seen <= own
            self._masks[sliding_window] = mask if sliding_window is None else mask & (seen > own - sliding_window)
        return self._masks[sliding_window]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the attention of every layer needs to know of one forward."""

    store: Store
    groups: list[Group]
    written: Tensor
    """For each new token, where its keys and values go."""


def extend(store: Store, caches: list[PagedKV], counts: list[int]) -> tuple[Batch, Tensor]:
    """Make room for new tokens of several requests, or for none of them.

    Gives the batch, and the position of each token in its request.
    """
    pool, size = store.pool, store.pool.page_size
    pool.reserve(sum(pool.needed(cache.table, count) for cache, count in zip(caches, counts, strict=True)))
    places: list[Tensor] = []
    tokens: list[list[int]] = []
    first = 0
    for cache, count in zip(caches, counts, strict=True):
        store.copy(pool.extend(cache.table, count))
        pages = torch.tensor(cache.table.pages)
        places.append((pages[:, None] * size + torch.arange(size)).reshape(-1)[: cache.table.length])
        tokens.append(list(range(first, first + count)))
        first += count
    single = [row for row, count in enumerate(counts) if count == 1]
    alone = [[row] for row, count in enumerate(counts) if count != 1]
    groups = [Group([tokens[r] for r in rows], [places[r] for r in rows]) for rows in (single, *alone) if rows]
    written = torch.cat([place[-count:] for place, count in zip(places, counts, strict=True)])
    at = torch.cat([torch.arange(len(p) - count, len(p)) for p, count in zip(places, counts, strict=True)])
    return Batch(store, groups, written), at


def attend(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - groups make their own
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    paged: Batch,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, heads, tokens, size] in, [1, tokens, heads, size] out.

    `paged` is ours: what is passed to a model's forward by a name it does not know reaches its attention.
    """
    if missing := [name for name in _NOT_DONE if others.get(name) is not None]:
        raise LoadError(
            f"{type(module).__name__} attends with {listed(missing)}, which is not done over pages\n  fix: {_FIX}"
        )
    queries = query[0]
    keys, values = paged.store.layer(module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys[paged.written] = key[0].transpose(0, 1)
    values[paged.written] = value[0].transpose(0, 1)
    outputs = torch.empty_like(queries)
    for group in paged.groups:
        outputs[:, group.tokens] = scaled_dot_product_attention(
            queries[:, group.tokens].transpose(0, 1),
            keys[group.positions].transpose(1, 2),
            values[group.positions].transpose(1, 2),
            attn_mask=group.mask(sliding_window),
            scale=scaling,
            enable_gqa=True,
        ).transpose(0, 1)
    return outputs.transpose(0, 1)[None], None


AttentionInterface.register(PAGED, attend)
AttentionMaskInterface.register(PAGED, lambda *_args, **_kwargs: None)  # groups make their own
