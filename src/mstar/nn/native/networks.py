"""Native execution of whole small networks in one call, where calling their layers one by one would cost more.

The structures contain raw addresses: the tensors behind them must outlive their use.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from mstar.nn.native import FLOAT, LONG, POINTER, kernel

LAYER = ("before", "joined", "query", "key", "output", "between", "widen", "narrow")
"""Names of the norms and matrices of a decoder layer."""


class Layer(ctypes.Structure):
    """A decoder layer: its norms, and its matrices as tiles. The norms of queries and keys can be null."""

    _fields_ = tuple((name, POINTER) for name in LAYER)


class DecoderSizes(ctypes.Structure):
    """Sizes of the input and of the KV cache of a decoder."""

    _fields_ = (
        *((name, LONG) for name in ("rows", "tokens", "width", "hidden", "heads", "key_heads", "size", "positions")),
        ("epsilon", FLOAT),
    )


def run_layers(
    hidden: Tensor,
    layers: ctypes.Array[Layer],
    cache: Tensor,
    angles: tuple[Tensor, Tensor],
    sizes: DecoderSizes,
    start: int,
) -> None:
    """Run a decoder in place on [rows, tokens, width]; the first token of each row has the position `start`.

    The cache is [layers, 2, rows, positions, key heads, size]; the angles are [positions, size].
    """
    cosines, sines = angles
    pointers = (cache.data_ptr(), cosines.data_ptr(), sines.data_ptr(), ctypes.addressof(sizes))
    run = kernel("run_layers", hidden.dtype)
    run(hidden.data_ptr(), ctypes.addressof(layers), len(layers), *pointers, start)


class Block(ctypes.Structure):
    """A transformer block with bidirectional attention: two norms, four matrices as tiles, and a bias after each."""

    _fields_ = tuple(
        (name, POINTER)
        for part in (("norm1", "joined", "output"), ("norm2", "widen", "narrow"))
        for weight in part
        for name in (weight, f"{weight}_bias")
    )


class Rotations(ctypes.Structure):
    """Rotary embedding of queries and keys as factors, [tokens, 2 * width] each, of a channel and its two neighbors."""

    _fields_ = (("own", POINTER), ("right", POINTER), ("left", POINTER))


class KVCacheView(ctypes.Structure):
    """A KV cache, [layers, 2, rows, heads, tokens, size], and its current number of tokens."""

    _fields_ = (("cells", POINTER), *((name, LONG) for name in ("layer", "half", "row", "head", "tokens")))

    @classmethod
    def from_tensor(cls, cells: Tensor, tokens: int) -> KVCacheView:
        """View of the first `tokens` tokens of a tensor."""
        return cls(cells.data_ptr(), *cells.stride()[:4], tokens)


class BlockSizes(ctypes.Structure):
    """Sizes of the input of blocks."""

    _fields_ = (*((name, LONG) for name in ("rows", "tokens", "width", "hidden", "heads")), ("epsilon", FLOAT))


def run_blocks(
    x: Tensor,
    blocks: ctypes.Array[Block],
    rotations: Rotations,
    caches: tuple[KVCacheView, KVCacheView] | None,
    stage: BlockSizes,
) -> None:
    """Run all blocks in place on [rows, tokens, width].

    `caches` are a cache shared by all rows and one with a row each: the new tokens are appended to the latter, and
    attend to both. Without caches, the tokens of a row attend to each other only.
    """
    shared, own = caches or (KVCacheView(), KVCacheView())
    structures: tuple[Any, ...] = (rotations, shared, own, stage)
    run = kernel("run_blocks", x.dtype)
    run(x.data_ptr(), ctypes.addressof(blocks), len(blocks), *map(ctypes.addressof, structures))
