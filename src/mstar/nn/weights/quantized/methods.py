"""The supported quantization methods, by the name in config.json (`quantization_config.quant_method`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mstar.errors import LoadError
from mstar.nn.weights.quantized.awq import Awq
from mstar.nn.weights.quantized.compressed_tensors import CompressedTensors
from mstar.nn.weights.quantized.fp8 import Fp8
from mstar.nn.weights.quantized.gptq import Gptq
from mstar.nn.weights.quantized.quantized_format import CONFIG, QuantizedFormat, require_value

METHODS: dict[str, Callable[[Mapping[str, Any]], QuantizedFormat]] = {
    "awq": Awq,
    "gptq": Gptq,
    "fp8": Fp8,
    "fbgemm_fp8": Fp8,
    "compressed-tensors": CompressedTensors,
}


def find_format(config: Any, file: str) -> QuantizedFormat:
    """The format that a `quantization_config` describes. Raises LoadError if it is not supported."""
    if not isinstance(config, Mapping):
        raise LoadError(f"{file}: {CONFIG} is {config!r}, not an object\n  fix: download it again")
    try:
        return METHODS[require_value("quant_method", config.get("quant_method"), METHODS)](config)
    except LoadError as error:
        raise LoadError(f"{file}: {error}") from None
