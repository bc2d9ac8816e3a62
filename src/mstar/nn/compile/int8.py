"""Weights as 8-bit integers, for CPUs: half of bf16 to read, and twice the products in an instruction.

Each row of a weight becomes whole numbers in [-127, 127] with a scale of its own; `native.linear_int8` does the same to
each 192 neighbours of a token's activations as they come. The sums of their products are exact, and a token's result
does not depend on its company. Which products of a network are done so is decided in `mstar.nn.compile.graph_capture`; nothing is
learned from example data.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix, [out, in], as integers in the tiles that AMX reads, and the scale of each of its rows.

    The tiles are [out / 16, in / 64, 16, 16, 4], the last being neighbours in a row. What is missing to whole tiles, of
    which two are read together, is zero.
    """
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / 127
    whole = (wide / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8)
    rows, size = weight.shape
    whole = pad(whole, (0, -size % 64, 0, -rows % 32))
    tiles = whole.view(len(whole) // 16, 16, -1, 16, 4).permute(0, 2, 3, 1, 4)
    return tiles.contiguous(), scales
