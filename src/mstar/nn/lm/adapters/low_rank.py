"""LoadedAdapter: the low-rank updates of an adapter, by the matrix products of the network that they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mstar.requests import Adapter

Linear = tuple[int, tuple[tuple[str, int], ...]]
"""A matrix product of a captured network: the size of its input, and the modules that it computes, each with the number
of its columns. A merged product computes several."""
STRUCT_FIELDS = 5
"""64-bit fields of the struct LowRank of low_rank.h."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """Update of some columns of a product: x @ first.T @ second."""

    first: Tensor
    """[rank, size]."""
    second: Tensor
    """[rank, columns], with the scale of the adapter."""
    start: int
    """First of its columns."""


class LoadedAdapter:
    """An adapter on this worker. The states of its requests keep it, so it is freed after the last of them."""

    def __init__(self, adapter: Adapter, updates: Mapping[tuple[int, int], LowRank], linears: int, parts: int) -> None:
        """`updates` are by number of the product and of the module in it; `parts` is the maximum of modules in one."""
        self.adapter = adapter
        self.updates = updates
        self.nbytes = sum(update.first.nbytes + update.second.nbytes for update in updates.values())
        self.structs = np.zeros((linears, parts, STRUCT_FIELDS), np.int64)
        """The updates as structs LowRank, for the native kernel."""
        for (linear, part), update in updates.items():
            pointers = update.first.data_ptr(), update.second.data_ptr()
            self.structs[linear, part] = (*pointers, len(update.first), update.start, update.second.shape[1])
