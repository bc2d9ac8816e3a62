"""QuantizedFormat: the interface of a layout of quantized weights, and the errors for layouts that are not supported.

A quantized linear layer has several tensors in place of its weight: codes, scales, often zero points. A format names
them, says which shapes they have, and computes the weight. `dequantized_tensors` does the reading.

Importing a format needs no torch, because `mstar serve PATH` checks the configuration before it starts a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mstar.errors import LoadError, format_names

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONFIG = "quantization_config"
"""Field of config.json that describes the format."""
FLOAT_DTYPES = ("float32", "bfloat16", "float16")
FLOAT = " or ".join(FLOAT_DTYPES)
_FIX = "use a checkpoint of the model in a supported format (docs/huggingface.md), or its unquantized weights"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Shape and dtype of a tensor in a safetensors file."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the torch dtype."""

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns. Raises ValueError."""
        match self.shape:
            case (rows, columns):
                return rows, columns
            case _:
                raise ValueError(f"a tensor of shape {list(self.shape)} is not a matrix")


class QuantizedFormat(Protocol):
    """A layout of quantized weights."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors that are read for a weight, in their module."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Names of which any one makes a module quantized. Modules without them are read as in a plain checkpoint, so
        the lists of unconverted modules in a configuration are not needed."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of tensors that are not read: scales of activations and KV caches, which are not quantized here."""
        ...

    def check(self, parts: Mapping[str, TensorHeader]) -> None:
        """Raise ValueError with the reason if the tensors of a module do not have this layout."""
        ...

    def dequantize(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute the weight of a module, [outputs, inputs]."""
        ...


def unsupported_value(field: str, value: Any, supported: Iterable[Any]) -> LoadError:
    """Error for a field of the configuration with a value that no format supports."""
    names = format_names(str(each) for each in supported)
    return LoadError(f"{CONFIG}.{field} is {value!r}, supported: {names}\n  fix: {_FIX}")


def require_value(field: str, value: Any, supported: Iterable[Any]) -> Any:
    """Return the value of a field. Raises LoadError if it is not supported."""
    allowed = tuple(supported)
    if value not in allowed:
        raise unsupported_value(field, value, allowed)
    return value


def require_group_size(field: str, value: Any) -> int:
    """Number of inputs that share a scale; -1 for all of them. Raises LoadError."""
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise unsupported_value(field, value, ("-1", "a positive number"))
    return value


def check_headers(parts: Mapping[str, TensorHeader], expected: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Raise ValueError if tensors differ from the shapes and dtypes of a layout, or are missing.

    FLOAT is any float of 16 or 32 bits. Tensors that are not expected are not compared.
    """
    for name, (shape, dtype) in expected.items():
        if name not in parts:
            raise ValueError(f"{name} is missing")
        actual = parts[name]
        if actual.dtype not in (FLOAT_DTYPES if dtype == FLOAT else (dtype,)):
            raise ValueError(f"{name} is {actual.dtype}, not {dtype}")
        if actual.shape != shape:
            raise ValueError(f"{name} is {list(actual.shape)}, not {list(shape)}")
