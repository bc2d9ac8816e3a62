"""GPTQ: 4-bit and 8-bit weights, with a scale and a zero point for each group of inputs.

| tensor | shape | content |
|---|---|---|
| `qweight` | inputs / n, outputs | codes of n = 32 / bits inputs in a word, the first one in the lowest bits |
| `qzeros` | groups, outputs / n | zero points of n outputs in a word |
| `scales` | groups, outputs | |
| `g_idx` | inputs | group of each input; with `desc_act` these are not in order |

weight = (code - zero point) * scale. `checkpoint_format` "gptq" stores zero points minus one, "gptq_v2" as they are.
Layouts that are repacked for a kernel, such as marlin, are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstar.nn.weights.quantized.quantized_format import (
    FLOAT,
    TensorHeader,
    check_headers,
    require_group_size,
    require_value,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word with 1 in each of its zero points."""


class Gptq:
    """Weights in the layout of AutoGPTQ and GPTQModel."""

    parts = ("qweight", "qzeros", "scales", "g_idx")
    markers = ("qweight",)
    unread = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._bits = require_value("bits", config.get("bits"), _ONES)
        self._group_size = require_group_size("group_size", config.get("group_size", 128))
        self._needs_index = bool(config.get("desc_act", False))
        require_value("is_marlin_format", config.get("is_marlin_format", False), (False,))
        field = "format" if config.get("format") and not config.get("checkpoint_format") else "checkpoint_format"
        layout = str(config.get(field) or "gptq").lower()
        self._are_zeros_minus_one = require_value(field, layout, ("gptq", "gptq_v2")) == "gptq"

    def check(self, parts: Mapping[str, TensorHeader]) -> None:
        """Raise ValueError if the tensors of a module do not have this layout."""
        rows, outputs = parts["qweight"].matrix
        per_word = 32 // self._bits
        inputs = rows * per_word
        groups = 1 if self._group_size == -1 else -(-inputs // self._group_size)
        expected = {
            "qweight": ((rows, outputs), "int32"),
            "qzeros": ((groups, -(-outputs // per_word)), "int32"),
            "scales": ((groups, outputs), FLOAT),
        }
        if self._needs_index or "g_idx" in parts:
            expected["g_idx"] = ((inputs,), "int32")
        check_headers(parts, expected)

    def dequantize(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute the weight of a module."""
        from mstar.nn.weights.quantized.arithmetic import dequantize, group_index, unpack

        words, zeros = parts["qweight"], parts["qzeros"]
        outputs = parts["scales"].shape[1]
        if self._are_zeros_minus_one:
            # Whole words, because GPTQModel subtracts from whole words: a zero point of 0 borrows from the next one.
            zeros = (zeros.long() + _ONES[self._bits]).int()
        codes = unpack(words.T, self._bits)
        index = parts.get("g_idx")
        columns = group_index(codes.shape[1], self._group_size) if index is None else index.long()
        return dequantize(codes, parts["scales"].T, unpack(zeros, self._bits)[:, :outputs].T, dtype, columns=columns)
