"""Whole small networks in one call: for those whose layers take less time than calling their parts one by one.

What is told here are addresses: the tensors that they are of must live for as long as they are used.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from mstar.nn.native import FLOAT, LONG, POINTER, kernel

LAYER = ("before", "joined", "query", "key", "output", "between", "widen", "narrow")
"""The norms and matrices of a decoder's layer."""


class Layer(ctypes.Structure):
    """A layer of a decoder: its norms and, in tiles, its matrices."""

    _fields_ = tuple((name, POINTER) for name in LAYER)


class DecoderSizes(ctypes.Structure):
    """Of what a decoder is given, and of what a row remembers."""

    _fields_ = (
        *((name, LONG) for name in ("rows", "tokens", "width", "hidden", "heads", "key_heads", "size", "positions")),
        ("epsilon", FLOAT),
    )


def run_layers(
    hidden: Tensor,
    layers: ctypes.Array[Layer],
    kept: Tensor,
    angles: tuple[Tensor, Tensor],
    sizes: DecoderSizes,
    start: int,
) -> None:
    """[rows, tokens, width] through a decoder, in its place; the first token of each row stands at `start`.

    kept is [layers, 2, rows, positions, key heads, size]; the angles are [positions, size].
    """
    cosines, sines = angles
    pointers = (kept.data_ptr(), cosines.data_ptr(), sines.data_ptr(), ctypes.addressof(sizes))
    run = kernel("run_layers", hidden.dtype)
    run(hidden.data_ptr(), ctypes.addressof(layers), len(layers), *pointers, start)


class Block(ctypes.Structure):
    """A layer whose tokens all see each other: two norms, each before two matrices, in tiles; biases behind each."""

    _fields_ = tuple(
        (name, POINTER)
        for part in (("norm1", "joined", "output"), ("norm2", "widen", "narrow"))
        for one in part
        for name in (one, f"{one}_bias")
    )


class Rotations(ctypes.Structure):
    """How channels of queries and keys are turned, [tokens, 2 * width] each; what neighbours add, and what is kept."""

    _fields_ = (("own", POINTER), ("right", POINTER), ("left", POINTER))


class KVCacheView(ctypes.Structure):
    """Keys and values that stay, [layers, 2, rows, heads, tokens, size], and how many tokens there are by now."""

    _fields_ = (("cells", POINTER), *((name, LONG) for name in ("layer", "half", "row", "head", "tokens")))

    @classmethod
    def from_tensor(cls, cells: Tensor, tokens: int) -> KVCacheView:
        """In a tensor that has room for as many or more."""
        return cls(cells.data_ptr(), *cells.stride()[:4], tokens)


class BlockSizes(ctypes.Structure):
    """Sizes of what goes through blocks."""

    _fields_ = (*((name, LONG) for name in ("rows", "tokens", "width", "hidden", "heads")), ("epsilon", FLOAT))


def run_blocks(
    x: Tensor,
    blocks: ctypes.Array[Block],
    rotations: Rotations,
    kept: tuple[KVCacheView, KVCacheView] | None,
    stage: BlockSizes,
) -> None:
    """[rows, tokens, width] through all blocks, in its place.

    With something kept, what all rows share and what each has: their new tokens become the last of the latter, and they
    see all of both. Otherwise rows see only themselves.
    """
    shared, own = kept or (KVCacheView(), KVCacheView())
    told: tuple[Any, ...] = (rotations, shared, own, stage)
    run = kernel("run_blocks", x.dtype)
    run(x.data_ptr(), ctypes.addressof(blocks), len(blocks), *(ctypes.addressof(one) for one in told))
