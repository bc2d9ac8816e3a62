"""Int8 quantization of weights for CPUs (W8A8): half the memory traffic of bf16, twice the products per instruction.

Weights are quantized per row to integers in [-127, 127]; `native.linear_int8` quantizes activations dynamically in
groups of 192. The integer sums are exact, so the result of a token does not depend on the rest of its batch.
`mstar.nn.compile.graph_capture` selects the matrix products. No calibration data is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix, [out, in]; return int8 tiles in the layout of AMX, and the scale of each row.

    The tiles are [out / 16, in / 64, 16, 16, 4]; the last dimension is adjacent in a row. Rows are padded with zeros to
    pairs of tiles, which are read together.
    """
    floats = weight.float()
    scales = floats.abs().amax(dim=1) / 127
    quantized = (floats / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8)
    rows, size = weight.shape
    quantized = pad(quantized, (0, -size % 64, 0, -rows % 32))
    tiles = quantized.view(len(quantized) // 16, 16, -1, 16, 4).permute(0, 2, 3, 1, 4)
    return tiles.contiguous(), scales
