"""Exports of KV caches of which each rank has the keys and values of some heads.

An export has all heads, so that a worker with any number of ranks can load it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mstar.nn.ranks import Rank, gather


def join_shards(shard: Tensor, head_bytes: Sequence[tuple[int, int]], positions: int) -> Tensor:
    """Keys and values with the heads of all ranks, as bytes; `shard` has those of this rank.

    `head_bytes` has the number of heads of a rank and the bytes of a head, for the keys and the values of each layer.
    Every rank must call it.
    """
    parts = [_split(part, head_bytes, positions) for part in gather(shard)]
    return torch.cat([torch.cat(layer, 1).flatten() for layer in zip(*parts, strict=True)])


def own_shard(data: Tensor, head_bytes: Sequence[tuple[int, int]], positions: int, rank: Rank) -> Tensor:
    """The heads of one rank of what `join_shards` returned."""
    layers = _split(data, [(heads * rank.count, size) for heads, size in head_bytes], positions)
    own = (layer.narrow(1, rank.number * heads, heads) for layer, (heads, _) in zip(layers, head_bytes, strict=True))
    return torch.cat([layer.flatten() for layer in own])


def _split(data: Tensor, head_bytes: Sequence[tuple[int, int]], positions: int) -> list[Tensor]:
    """The keys and values of each layer as [positions, heads, bytes]."""
    parts = data.split([positions * heads * size for heads, size in head_bytes])
    return [part.view(positions, heads, size) for part, (heads, size) in zip(parts, head_bytes, strict=True)]
