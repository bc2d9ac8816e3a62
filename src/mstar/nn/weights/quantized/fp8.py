"""FP8 weights: float8_e4m3fn with float scales, for a block of a weight, an output or all of it.

| tensor | shape | content |
|---|---|---|
| `weight` | outputs, inputs | float8_e4m3fn |
| `weight_scale_inv` or `weight_scale` | blocks of outputs and of inputs | `weight_block_size` (DeepSeek, Qwen3) |
| | outputs, 1, or outputs | for an output (fbgemm_fp8) |
| | none, or 1 | for all of it |

weight = code * scale, by either name: `weight_scale_inv` is the inverse of the factor that the weight was quantized
with. Scales of activations are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstar.nn.weights.quantized.quantized_format import FLOAT_DTYPES, TensorHeader, require_value, unsupported_value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FP8_DTYPE = "float8_e4m3fn"
SCALE_DTYPES = (*FLOAT_DTYPES, "float8_e8m0fnu")
ACTIVATION_SCALES = (
    "input_scale",
    "activation_scale",
    "input_scale_ub",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
)
"""Names of tensors that quantize activations and KV caches."""


class Fp8:
    """Weights in float8_e4m3fn."""

    parts = ("weight", "weight_scale_inv", "weight_scale")
    markers = ("weight_scale_inv", "weight_scale")
    unread = ACTIVATION_SCALES

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._block = require_block("weight_block_size", config.get("weight_block_size"))
        if "fmt" in config:
            require_value("fmt", config["fmt"], ("e4m3",))

    def check(self, parts: Mapping[str, TensorHeader]) -> None:
        """Raise ValueError if the tensors of a module do not have this layout."""
        scales = [name for name in self.markers if name in parts]
        if "weight" not in parts or len(scales) != 1:
            raise ValueError(f"it has {' and '.join(parts)} instead of a weight and one scale")
        if parts["weight"].dtype != FP8_DTYPE:
            raise ValueError(f"weight is {parts['weight'].dtype}, not {FP8_DTYPE}")
        check_scale(parts["weight"], scales[0], parts[scales[0]], self._block)

    def dequantize(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute the weight of a module."""
        scale = next(parts[name] for name in self.markers if name in parts)
        return multiply_scale(parts["weight"], scale, None, self._block, dtype)


def require_block(field: str, value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block. None: a scale is for a channel or a tensor. Raises LoadError."""
    if value is None:
        return None
    match value:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise unsupported_value(field, value, ("two positive numbers", "null"))


def scale_grid(scale: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a scale as rows and columns."""
    return (1, 1) if scale in ((), (1,)) else (scale[0], 1) if len(scale) == 1 else scale


def check_scale(weight: TensorHeader, name: str, scale: TensorHeader, block: tuple[int, int] | None) -> None:
    """Raise ValueError if a scale does not fit a weight."""
    outputs, inputs = weight.matrix
    if scale.dtype not in SCALE_DTYPES:
        raise ValueError(f"{name} is {scale.dtype}, not {' or '.join(SCALE_DTYPES)}")
    grids = [(1, 1), (outputs, 1)] if block is None else [(-(-outputs // block[0]), -(-inputs // block[1]))]
    if scale_grid(scale.shape) not in grids:
        expected = " or ".join(str(list(grid)) for grid in grids)
        raise ValueError(f"{name} is {list(scale.shape)}, not {expected} for a weight of {list(weight.shape)}")


def multiply_scale(
    weight: Tensor, scale: Tensor, zeros: Tensor | None, block: tuple[int, int] | None, dtype: torch.dtype
) -> Tensor:
    """Compute a weight from its codes and a scale that fits (`check_scale`)."""
    from mstar.nn.weights.quantized.arithmetic import dequantize, group_index

    grid = scale_grid(tuple(scale.shape))
    rows = group_index(len(weight), 1 if block is None else block[0]) if grid[0] > 1 else None
    columns = None if block is None else group_index(weight.shape[1], block[1])
    zeros = None if zeros is None else zeros.reshape(grid)
    return dequantize(weight, scale.float().reshape(grid), zeros, dtype, rows=rows, columns=columns)
