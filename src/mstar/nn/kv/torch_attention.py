"""The `torch` attention backend: fused kernels on a CPU, otherwise torch's attention over gathered pages.

The result of the fused kernels for a token does not depend on other tokens. Where there are none, requests are
gathered: their pages are copied to one tensor, which torch's attention reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mstar.errors import LoadError
from mstar.nn import native
from mstar.nn.kv.attention_backend import AttentionBackend, View
from mstar.nn.kv.cache_dtype import to_cache_dtype


class Group:
    """Requests of a forward with equal numbers of tokens, for one call of torch's attention."""

    def __init__(self, batch: View, rows: list[int]) -> None:
        tokens = batch.tokens_of(rows)
        places = batch.places_of(rows)
        places = torch.nn.functional.pad(places, (0, max(0, batch.min_positions - places.shape[1])))
        seen = batch.seen[tokens][:, None, :, None]
        self.arrays: tuple[Tensor, Tensor, Tensor] = tokens, places, seen
        """Token indices of each request, [requests, new]; slots of its keys and values, [requests, longest], whose
        padding is masked; number of positions that each token sees, [requests, 1, new, 1]."""
        self._masks: dict[int, Tensor] = {}
        first, new, longest = int(seen.flatten()[0]), tokens.shape[1], places.shape[1]
        self._is_beginning = len(rows) == 1 and first == 1 and new == longest
        """Whether it is one request without earlier tokens: plain causal attention without a mask, at half the cost."""

    def mask(self, window: int) -> Tensor:
        """[requests, 1, new, longest]: causal mask, limited to the sliding window if there is one."""
        if window not in self._masks:
            _, places, seen = self.arrays
            positions = torch.arange(places.shape[1], device=seen.device)
            mask = positions < seen
            self._masks[window] = mask & (positions >= seen - window) if window else mask
        return self._masks[window]

    def attend(self, out: Tensor, query: Tensor, memory: tuple[Tensor, Tensor], scaling: float, window: int) -> None:
        """Write the output of these requests to `out`, [tokens, heads, size]. The query is [heads, tokens, size]."""
        keys, values = memory
        tokens, places, _ = self.arrays
        is_plain = self._is_beginning and not 0 < window < places.shape[1]
        out[tokens] = scaled_dot_product_attention(
            query[:, tokens].transpose(0, 1),
            keys[places].to(query.dtype).transpose(1, 2),
            values[places].to(query.dtype).transpose(1, 2),
            attn_mask=None if is_plain else self.mask(window),
            is_causal=is_plain,
            scale=scaling,
            enable_gqa=True,
        ).transpose(1, 2)

    def attend_general(  # noqa: PLR0913, PLR0917 - the rule of a layer
        self,
        out: Tensor,
        query: Tensor,
        memory: tuple[Tensor, Tensor],
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> None:
        """Do the same with a soft cap of the scores and attention sinks, which torch's attention does not have."""
        tokens, places, _ = self.arrays
        queries = query[:, tokens].transpose(0, 1)
        group = len(query) // memory[0].shape[1]
        keys, values = (part[places].to(query.dtype).transpose(1, 2).repeat_interleave(group, 1) for part in memory)
        scores = (queries @ keys.mT).float() * scaling
        if softcap:
            scores = (scores / softcap).tanh() * softcap
        scores = scores.masked_fill(~self.mask(window), -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float()[:, None, None].expand(*scores.shape[:3], 1)], -1)
        weights = scores.softmax(-1)[..., : places.shape[1]].to(values.dtype)
        out[tokens] = (weights @ values).transpose(1, 2)


class TorchAttention(AttentionBackend):
    """The backend of CPUs, and of devices without another one."""

    name: ClassVar[str] = "torch"

    def plan(self, view: View) -> Sequence[Group]:
        """All requests in groups."""
        return view.groups

    def write(self, batch: View, key: Tensor, value: Tensor, layer: int) -> None:
        """Write the keys and values of all tokens, [1, heads, tokens, size], to their slots."""
        key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)
        memory = batch.store.layer(layer, key, value)
        if is_native(memory, key.dtype):
            native.write(memory, key, value, batch.places)
        else:
            for part, new in zip(memory, (key, value), strict=True):
                part[batch.places] = to_cache_dtype(new, part.dtype)

    def attend(  # noqa: PLR0913, PLR0917 - the interface
        self,
        view: View,
        query: Tensor,
        layer: int,
        scaling: float,
        window: int,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over the pages: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
        memory = view.store.keys[layer], view.store.values[layer]
        tokens, heads, size = query.shape[2], query.shape[1], memory[1].shape[2]
        out = torch.empty((tokens, heads, size), dtype=query.dtype, device=query.device)
        if softcap or sinks is not None:
            _require_groups(view)
            for group in view.plan:
                group.attend_general(out, query[0], memory, scaling, window, softcap, sinks)
        elif is_native(memory, query.dtype):
            native.attend(out, query, memory, view.pages, scaling, window)
        else:
            for group in view.plan:
                group.attend(out, query[0], memory, scaling, window)
        return out[None]


TORCH_ATTENTION = TorchAttention()
"""The one instance: it has no state."""


def is_native(memory: tuple[Tensor, Tensor], dtype: torch.dtype) -> bool:
    """Whether the fused kernels read this memory for a network with this dtype."""
    keys, values = memory
    return keys.dtype is dtype and native.is_native(dtype, keys.device) and keys.shape == values.shape


def _require_groups(view: View) -> None:
    """Raise LoadError for a part of a batch in deterministic mode, which only the fused kernels attend."""
    if not len(view.counts):
        problem = "attention with a soft cap or sinks does not run in deterministic mode"
        raise LoadError(f"{problem}\n  fix: set deterministic=False")
