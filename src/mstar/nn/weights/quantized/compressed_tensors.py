"""compressed-tensors: weights of 4 or 8 bits as llm-compressor saves them, packed (W4A16, W8A16) or not (W8A8, FP8).

| tensor | shape | content |
|---|---|---|
| `weight_packed` | outputs, inputs / n | codes of n = 32 / bits inputs in a word, the first one in the lowest bits |
| `weight_shape` | 2 | outputs and inputs |
| or `weight` | outputs, inputs | int8 or float8_e4m3fn |
| `weight_scale` | outputs, groups | also one for an output, for all, or for a block |
| `weight_zero_point` | outputs / n, groups | packed along the outputs; int8 if the weight is not packed |
| `weight_g_idx` | inputs | group of each input, if these are not in order |

weight = (code - zero point) * scale. Packed numbers have half of their range added: 8 for 4 bits, 128 for 8 bits.
Sparse weights, transforms and numbers of 4 bits with an exponent are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstar.nn.weights.quantized.fp8 import (
    ACTIVATION_SCALES,
    FP8_DTYPE,
    check_scale,
    multiply_scale,
    require_block,
    scale_grid,
)
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

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_STRATEGIES = ("tensor", "channel", "group", "block")
_WEIGHT_FIELDS = ("num_bits", "type", "strategy", "group_size", "block_structure", "symmetric")


class CompressedTensors:
    """Weights in a layout of compressed-tensors. All of them have the same bits and groups."""

    parts = ("weight", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")
    markers = ("weight_packed", "weight_scale")
    unread = (*ACTIVATION_SCALES, "input_zero_point", "output_zero_point")

    def __init__(self, config: Mapping[str, Any]) -> None:
        weights = _weight_arguments(config)
        is_float = require_value("weights.type", weights["type"] or "int", ("int", "float")) == "float"
        self._bits = require_value("weights.num_bits", weights["num_bits"], (8,) if is_float else (4, 8))
        self._dtype = FP8_DTYPE if is_float else "int8"
        self._is_symmetric = weights["symmetric"] is not False
        group_size = require_group_size("weights.group_size", weights["group_size"] or -1)
        implied = "group" if group_size > 0 else "channel"
        strategy = require_value("weights.strategy", weights["strategy"] or implied, _STRATEGIES)
        self._is_blocked = strategy == "block"
        block = weights["block_structure"] if self._is_blocked else None
        self._block = require_block("weights.block_structure", block)
        self._group_size = group_size if strategy == "group" else -1
        if self._group_size != -1:
            self._block = (1, self._group_size)

    def check(self, parts: Mapping[str, TensorHeader]) -> None:
        """Raise ValueError if the tensors of a module do not have this layout."""
        if "weight_scale" not in parts:
            raise ValueError("weight_scale is missing")
        if "weight_packed" in parts:
            self._check_packed(parts)
            return
        if "weight_g_idx" in parts:
            raise ValueError("weight_g_idx is supported for packed weights only")
        scale = parts["weight_scale"]
        check_headers(parts, {"weight": (parts.get("weight", scale).shape, self._dtype)})
        check_scale(parts["weight"], "weight_scale", scale, self._block)
        if not self._is_symmetric:
            check_headers(parts, {"weight_zero_point": (scale.shape, "int8")})

    def _check_packed(self, parts: Mapping[str, TensorHeader]) -> None:
        if self._dtype != "int8" or self._is_blocked:
            raise ValueError("weight_packed is not a layout of float weights and blocks")
        per_word = 32 // self._bits
        outputs, words = parts["weight_packed"].matrix
        groups = 1 if self._group_size == -1 else -(-words * per_word // self._group_size)
        scale = parts["weight_scale"].shape
        expected = {
            "weight_packed": ((outputs, words), "int32"),
            "weight_shape": ((2,), "int64"),
            "weight_scale": (scale if groups == 1 and scale_grid(scale) == (1, 1) else (outputs, groups), FLOAT),
        }
        if not self._is_symmetric:
            expected["weight_zero_point"] = ((-(-outputs // per_word), groups), "int32")
        if "weight_g_idx" in parts:
            expected["weight_g_idx"] = (parts["weight_g_idx"].shape, "int32")
        check_headers(parts, expected)

    def dequantize(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute the weight of a module."""
        if "weight_packed" in parts:
            return self._dequantize_packed(parts, dtype)
        zeros = None if self._is_symmetric else parts["weight_zero_point"]
        return multiply_scale(parts["weight"], parts["weight_scale"], zeros, self._block, dtype)

    def _dequantize_packed(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        import torch

        from mstar.nn.weights.quantized.arithmetic import dequantize, group_index, unpack

        outputs, inputs = parts["weight_shape"].tolist()
        codes = unpack(parts["weight_packed"], self._bits)
        if outputs != len(codes) or not 0 <= codes.shape[1] - inputs < 32 // self._bits:
            raise ValueError(f"weight_shape is {[outputs, inputs]}, and the codes are {list(codes.shape)}")
        scales = parts["weight_scale"].reshape(scale_grid(tuple(parts["weight_scale"].shape)))
        if self._is_symmetric:
            zeros = torch.full(scales.shape, 1 << (self._bits - 1), dtype=torch.uint8)
        else:
            zeros = unpack(parts["weight_zero_point"].T, self._bits)[:, :outputs].T
        columns, index = group_index(inputs, self._group_size), parts.get("weight_g_idx")
        if index is not None and -1 not in index:  # which marks an index that is not used
            columns = index.long()
        return dequantize(codes[:, :inputs], scales, zeros, dtype, columns=columns)


def _weight_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the weights, which are those of all groups of modules. Raises LoadError."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise unsupported_value("config_groups", groups, ("an object with one group or more",))
    layout = config.get("format")
    if layout != "mixed-precision":  # in which each group has its own
        require_value("format", layout, _FORMATS)
    arguments: list[dict[str, Any]] = []
    for name, group in groups.items():
        require_value(f"config_groups.{name}.format", group.get("format") or layout, _FORMATS)
        weights = group.get("weights") or {}
        arguments.append({field: weights.get(field) for field in _WEIGHT_FIELDS})
    if different := [weights for weights in arguments if weights != arguments[0]]:
        raise unsupported_value("config_groups", [arguments[0], different[0]], ("the same weights in all groups",))
    sparsity = config.get("sparsity_config") or {}
    require_value("sparsity_config.format", sparsity.get("format", "dense"), ("dense",))
    if config.get("transform_config"):
        raise unsupported_value("transform_config", config["transform_config"], ("none",))
    return arguments[0]
