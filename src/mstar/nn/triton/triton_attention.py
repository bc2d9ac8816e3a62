"""The `triton` attention backend: plans a ragged batch on the host and launches the kernels of our own.

The plan of a forward has the rows of the page table, the number of positions that each token sees, and blocks of
tokens; it is copied to the device with the rest of the batch. All layers read it. A layer launches two kernels, and a
third one if long requests are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
import triton
from torch import Tensor

from mstar.nn.kv.attention_backend import AttentionBackend, View
from mstar.nn.kv.cache_dtype import FP8
from mstar.nn.triton import LAUNCH_OPTIONS, paged_attention

_kernels: Any = paged_attention
"""Type checkers see functions instead of kernels."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of networks."""
CACHE_DTYPES = (*DTYPES, FP8)
"""Types of keys and values that the kernels read."""
PREFILL_TOKENS = 32
"""Maximum number of tokens of a block if a request has several new tokens."""
_PREFILL_MEMBERS, _DECODE_MEMBERS = 4, 16
"""Maximum number of query heads of a block."""
_MIN_BLOCK = 16
"""Smallest side of a matrix product of tensor cores."""
_MIN_SPLIT_POSITIONS = 512
"""Minimum number of positions of a split."""
_PROGRAMS = 256
"""Number of programs that occupy a GPU: about two for each of the multiprocessors of an H100. Not measured."""
MAX_SPLITS = 32
_WRITE_TOKENS = 16
_TILE_BYTES = 1 << 14
"""Size of a tile of keys in shared memory."""


class TritonPlan:
    """Plan of a forward."""

    def __init__(self, view: View) -> None:
        counts = view.counts
        self.longest = max(view.min_positions, *(cache.table.length for cache in view.caches))
        """Number of positions of the longest request, or that it may have."""
        self.block_tokens = 1 if int(counts.max()) == 1 else PREFILL_TOKENS
        store, width = view.store, -(-self.longest // view.store.pool.page_size)
        rows = store.page_table.array[[cache.row for cache in view.caches], :width]
        page_table = np.pad(rows, ((0, 0), (0, width - rows.shape[1]))).astype(np.int64)
        blocks = token_blocks(counts, self.block_tokens)
        self.arrays: tuple[Tensor, ...] = torch.from_numpy(page_table), view.seen, torch.from_numpy(blocks)
        """Page table, [requests, pages]; number of positions that each token sees; blocks of tokens, [blocks, 3]."""


def token_blocks(counts: np.ndarray, size: int) -> np.ndarray:
    """Blocks of at most `size` tokens of one request, as [blocks, 3]: request, first token, number of tokens."""
    blocks = -(-counts // size)
    requests = np.arange(len(counts)).repeat(blocks)
    indices = np.arange(len(requests)) - (blocks.cumsum() - blocks)[requests]
    firsts = (counts.cumsum() - counts)[requests] + indices * size
    return np.stack([requests, firsts, np.minimum(counts[requests] - indices * size, size)], 1)


class TritonAttention(AttentionBackend):
    """Paged attention by our own kernels. `min_split_positions` is smaller in tests."""

    name: ClassVar[str] = "triton"

    def __init__(self, min_split_positions: int = _MIN_SPLIT_POSITIONS) -> None:
        self._min_split_positions = min_split_positions
        self.split_positions = 2 * min_split_positions

    def plan(self, view: View) -> Sequence[TritonPlan]:
        """The plan of a forward."""
        return [TritonPlan(view)]

    def write(self, batch: View, key: Tensor, value: Tensor, layer: int) -> None:
        """Write the keys and values of all tokens, [1, heads, tokens, size], to their slots."""
        key, value = _dense_rows(key[0].transpose(0, 1)), _dense_rows(value[0].transpose(0, 1))
        memory = batch.store.layer(layer, key, value)
        tokens, heads, _ = key.shape
        with _on_device_of(key):
            _kernels.write_pages[triton.cdiv(tokens, _WRITE_TOKENS), heads](
                *(*memory, key, value, batch.places, tokens),
                *(key.stride(0), key.stride(1), value.stride(0), value.stride(1)),
                HEADS=heads,
                **_sizes(memory),
                TOKENS=_WRITE_TOKENS,
                **LAUNCH_OPTIONS,
            )

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
        keys, values = memory = view.store.keys[layer], view.store.values[layer]
        (plan,) = view.plan
        page_table, seen, blocks = plan.arrays
        query = _dense_rows(query[0].transpose(0, 1))
        tokens, query_heads, _ = query.shape
        heads = keys.shape[1]
        members, rows = block_shape(query_heads // heads, plan.block_tokens)
        programs = len(blocks), heads * triton.cdiv(query_heads // heads, members)
        splits = self._splits(plan, programs[0] * programs[1])
        out = query.new_empty((tokens, query_heads, values.shape[2]))
        parts, logsumexps = out, out
        if splits > 1:
            parts = out.new_empty((splits, *out.shape), dtype=torch.float32)
            logsumexps = parts.new_empty(parts.shape[:-1])
        with _on_device_of(query):
            _kernels.attend[(*programs, splits)](
                *(parts, logsumexps, query, keys, values, query if sinks is None else sinks),
                *(page_table, seen, blocks, tokens, page_table.shape[1], query.stride(0), query.stride(1)),
                *(scaling, softcap, window),
                HEADS=heads,
                GROUP=query_heads // heads,
                MEMBERS=members,
                ROWS=rows,
                **_sizes(memory),
                PAGE_SIZE=view.store.pool.page_size,
                POSITIONS=tile_positions(keys.shape[2], query.element_size()),
                IS_SPLIT=splits > 1,
                HAS_SOFTCAP=bool(softcap),
                HAS_SINKS=sinks is not None,
                **LAUNCH_OPTIONS,
            )
            if splits > 1:
                size = values.shape[2]
                _kernels.merge_splits[tokens * query_heads,](
                    *(out, parts, logsumexps, tokens * query_heads, splits),
                    MAX_SPLITS=MAX_SPLITS,
                    VALUE_SIZE=size,
                    VALUE_BLOCK=triton.next_power_of_2(size),
                    **LAUNCH_OPTIONS,
                )
        return out[None]

    def _splits(self, plan: TritonPlan, programs: int) -> int:
        """Number of splits of each request: several in decode, if there are few programs and long requests."""
        if plan.block_tokens > 1:
            return 1
        return max(1, min(plan.longest // self._min_split_positions, _PROGRAMS // programs, MAX_SPLITS))


def block_shape(group: int, tokens: int) -> tuple[int, int]:
    """Query heads and rows of a block of tokens, if `group` query heads share a key head."""
    members = min(triton.next_power_of_2(group), _DECODE_MEMBERS if tokens == 1 else _PREFILL_MEMBERS)
    return members, max(members * tokens, _MIN_BLOCK)


def tile_positions(size: int, element_bytes: int) -> int:
    """Number of positions of a tile of keys with this size."""
    return min(64, max(_MIN_BLOCK, _TILE_BYTES // (_block(size) * element_bytes)))


def _block(size: int) -> int:
    return max(_MIN_BLOCK, triton.next_power_of_2(size))


def _sizes(memory: tuple[Tensor, Tensor]) -> dict[str, int]:
    """Sizes of a key and a value as constants of a kernel."""
    key_size, value_size = memory[0].shape[2], memory[1].shape[2]
    return {
        "KEY_SIZE": key_size,
        "KEY_BLOCK": _block(key_size),
        "VALUE_SIZE": value_size,
        "VALUE_BLOCK": _block(value_size),
    }


def _dense_rows(x: Tensor) -> Tensor:
    """The same tensor, with adjacent elements in the last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device of torch."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
