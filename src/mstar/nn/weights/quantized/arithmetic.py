"""Arithmetic of quantized weights: unpacking of words, and weight = (code - zero point) * scale in float32.

A product of a code of at most 8 bits and a scale of 16 bits is exact in float32, so a weight is rounded once, to the
dtype of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK_NUMBERS = 1 << 20
"""Numbers of a weight that are computed at a time, in float32: they stay in the processor's cache."""


def unpack(words: Tensor, bits: int) -> Tensor:
    """Codes of 4 or 8 bits in the int32 words of the last dimension, those in the lowest bits first, as uint8."""
    # Not contiguous(): it leaves the strides of one row as they are. Words are little-endian, as safetensors is.
    codes = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return codes
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def group_index(count: int, group_size: int) -> Tensor:
    """Group of each of `count` rows or columns; -1 for one group."""
    return torch.zeros(count, dtype=torch.long) if group_size == -1 else torch.arange(count) // group_size


def _to_float(codes: Tensor) -> Tensor:
    """Codes as float32. Those of FP8 are looked up: torch converts them one at a time."""
    if codes.dtype != torch.float8_e4m3fn:
        return codes.float()
    table = torch.arange(256, dtype=torch.uint8).view(codes.dtype).float()
    return table.index_select(0, codes.reshape(-1).view(torch.uint8).int()).view(codes.shape)


def dequantize(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    dtype: torch.dtype,
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """Compute a weight. `rows` and `columns` are the indices of its rows and columns in `scales` and `zeros`.

    Without them a scale is that of the same row, and of all columns, or there is only one. Raises ValueError if a
    column has no scale.
    """
    if columns is not None and not 0 <= int(columns.min()) <= int(columns.max()) < scales.shape[1]:
        raise ValueError(f"an input has a group that is not one of {scales.shape[1]}")
    weight = torch.empty(codes.shape, dtype=dtype)
    step = max(1, _CHUNK_NUMBERS // max(1, codes.shape[1]))
    is_shared = rows is None and len(scales) == 1
    for first in range(0, len(codes), step):
        chosen = (
            slice(None) if is_shared else slice(first, first + step) if rows is None else rows[first : first + step]
        )

        def spread(values: Tensor, chosen: slice | Tensor = chosen) -> Tensor:
            part = values[chosen].float()
            return part if columns is None else part.index_select(1, columns)

        part = _to_float(codes[first : first + step])
        if zeros is not None:
            part -= spread(zeros)
        part *= spread(scales)
        weight[first : first + step] = part
    return weight
