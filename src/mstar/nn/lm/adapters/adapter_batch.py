"""AdapterBatch: which adapter each token of a forward has, and the computation of their updates.

Tokens of several adapters, and tokens without one, are in one batch. The native kernel computes every token by itself
in one call per product; without it, torch computes the tokens of one adapter together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from mstar.nn import native
from mstar.nn.lm.adapters.low_rank import LoadedAdapter


class AdapterBatch:
    """The adapters of the tokens of one forward."""

    def __init__(self, adapters: Sequence[LoadedAdapter], numbers: Tensor) -> None:
        """`numbers` is the index in `adapters` for each token, or -1."""
        self._adapters = adapters
        self._numbers = numbers
        self._structs = np.stack([adapter.structs for adapter in adapters], 1)
        ranks = self._structs[..., 2]
        self._is_adapted = cast("list[bool]", ranks.any(axis=(1, 2)).tolist())
        """Whether an adapter changes each product."""

    @classmethod
    def of(cls, adapters: Sequence[LoadedAdapter | None], counts: np.ndarray) -> Self | None:
        """The batch of requests with these adapters, `counts` tokens each; None if no request has one."""
        distinct = [*dict.fromkeys(adapter for adapter in adapters if adapter is not None)]
        if not distinct:
            return None
        numbers: dict[LoadedAdapter | None, int] = {adapter: number for number, adapter in enumerate(distinct)}
        of_requests = np.array([numbers.get(adapter, -1) for adapter in adapters], np.int64)
        return cls(distinct, torch.from_numpy(of_requests.repeat(counts)))

    def part(self, first: int, last: int) -> AdapterBatch:
        """The adapters of some of the tokens."""
        return type(self)(self._adapters, self._numbers[first:last])

    def add(self, out: Tensor, x: Tensor, linear: int) -> Tensor:
        """Add the updates of a product to its result `out`, in place; x is its input. Tokens after those of the batch
        are padding."""
        if not self._is_adapted[linear]:
            return out
        out = out.contiguous()
        if native.is_native(out.dtype, out.device):
            structs = self._structs[linear]
            native.add_low_rank(out, x, self._numbers, structs.ctypes.data, structs.shape[1])
        else:
            self._add_with_torch(out.view(-1, out.shape[-1]), x.reshape(-1, x.shape[-1]), linear)
        return out

    def _add_with_torch(self, out: Tensor, x: Tensor, linear: int) -> None:
        for number, adapter in enumerate(self._adapters):
            rows = (self._numbers == number).nonzero()[:, 0].to(out.device)
            for part in range(adapter.structs.shape[1]):
                if (update := adapter.updates.get((linear, part))) is not None:
                    columns = out[:, update.start : update.start + update.second.shape[1]]
                    columns.index_add_(0, rows, x[rows] @ update.first.T @ update.second)
