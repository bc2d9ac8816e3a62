"""AWQ: 4-bit weights in the gemm layout, with a scale and a zero point for each group of inputs.

| tensor | shape | content |
|---|---|---|
| `qweight` | inputs, outputs / 8 | codes of 8 outputs in a word |
| `qzeros` | groups, outputs / 8 | zero points, packed in the same way |
| `scales` | groups, outputs | |

From the lowest bits, a word has the codes of outputs 0, 2, 4, 6, 1, 3, 5 and 7 of its 8: an order for GPU kernels.
weight = (code - zero point) * scale. The layouts gemv, gemv_fast, llm-awq and marlin are not supported.
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
    unsupported_value,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BITS = 4
_PER_WORD = 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output whose code is at each position of a word, from the lowest bits."""


class Awq:
    """Weights in the gemm layout of AWQ."""

    parts = ("qweight", "qzeros", "scales")
    markers = ("qweight",)
    unread = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        require_value("bits", config.get("bits", _BITS), (_BITS,))
        self._group_size = require_group_size("group_size", config.get("group_size", 128))
        field = next((name for name in ("version", "format", "checkpoint_format") if config.get(name)), "version")
        require_value(field, str(config.get(field, "gemm")).lower(), ("gemm",))
        if config.get("backend") == "llm-awq":  # which has a layout of its own under the same version
            raise unsupported_value("backend", "llm-awq", ("autoawq",))

    def check(self, parts: Mapping[str, TensorHeader]) -> None:
        """Raise ValueError if the tensors of a module do not have this layout."""
        inputs, words = parts["qweight"].matrix
        groups = 1 if self._group_size == -1 else -(-inputs // self._group_size)
        expected = {
            "qweight": ((inputs, words), "int32"),
            "qzeros": ((groups, words), "int32"),
            "scales": ((groups, words * _PER_WORD), FLOAT),
        }
        check_headers(parts, expected)

    def dequantize(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute the weight of a module."""
        import torch

        from mstar.nn.weights.quantized.arithmetic import dequantize, group_index, unpack

        positions = torch.tensor([ORDER.index(output) for output in range(_PER_WORD)])

        def codes(words: Tensor) -> Tensor:
            rows = unpack(words, _BITS).T.contiguous()  # whole rows are reordered in a fraction of the time
            return rows.unflatten(0, (-1, _PER_WORD)).index_select(1, positions).flatten(0, 1)

        inputs = len(parts["qweight"])
        return dequantize(
            codes(parts["qweight"]),
            parts["scales"].T,
            codes(parts["qzeros"]),
            dtype,
            columns=group_index(inputs, self._group_size),
        )
