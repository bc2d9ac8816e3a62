"""Shards of parameters: which part of a network's parameters a rank keeps, so that only that part is read.

Models load their networks in functions without arguments, so a loader of ranks says in the context that networks are
to be sharded. A reader of checkpoints that can read parts of tensors does it; any other network is sharded after it is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of a parameter along a dimension, in each of `packed` equal parts of it."""

    dim: int
    """Negative, so that it is the same for one expert and for all of them."""
    first: int
    last: int
    size: int
    """Size of a part."""
    packed: int = 1
    is_zero: bool = False
    """The rank has zeros of the whole shape instead, such as a bias that only rank 0 adds."""

    def fits(self, shape: list[int]) -> bool:
        """Whether a tensor of this shape has these parts."""
        return len(shape) >= -self.dim and shape[self.dim] == self.size * self.packed

    def is_contiguous(self, shape: list[int]) -> bool:
        """Whether it is one range of the memory of a tensor of this shape."""
        return len(shape) == -self.dim and self.packed == 1

    def take(self, whole: Any) -> Tensor:
        """The shard of a tensor that safetensors has opened (`get_slice`); a view unless the tensor is packed."""
        if self.is_zero:
            return torch.zeros_like(whole[...])
        start = [slice(None)] * (len(whole.get_shape()) + self.dim)
        offsets = [part * self.size for part in range(self.packed)]
        parts = [whole[(*start, slice(offset + self.first, offset + self.last))] for offset in offsets]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


@dataclass(slots=True)
class ShardedLoad:
    """A load of networks as shards. `shard` reduces a network to its shard, and returns the shards by parameter."""

    shard: Callable[[Any], dict[str, Shard]]
    networks: list[Any] = field(default_factory=list[Any])
    """The networks that were read as shards."""


_current: ContextVar[ShardedLoad | None] = ContextVar("sharded_load", default=None)


def current_sharded_load() -> ShardedLoad | None:
    """The load in whose context this is called."""
    return _current.get()


@contextmanager
def sharded_load(shard: Callable[[Any], dict[str, Shard]]) -> Iterator[ShardedLoad]:
    """Networks that are read in this context can be read as shards."""
    load = ShardedLoad(shard)
    token = _current.set(load)
    try:
        yield load
    finally:
        _current.reset(token)
