"""Checks what an op returns against its annotation, so that a wrong result is blamed on the op that made it.

Rank, fixed sizes and dtype are compared. Named sizes are known at run time only; the batch layout checks its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mstar.errors import BadShape, format_count
from mstar.graph.types import FLOATS, TensorType
from mstar.walk.batching import Batch
from mstar.walk.types import Hint
from mstar.walk.values import is_array


def check_results(name: str, body: Callable[..., Any], batch: Batch, hints: Sequence[Hint], values: Any) -> None:
    """Raise BadShape if the values that the body of the op `name` returned differ from its annotation."""
    if not isinstance(values, list | tuple) or len(cast("Sequence[Any]", values)) != len(hints):
        expected = f"a tuple of {format_count(len(hints), 'value')}"
        raise _bad_result(body, f"op {name} returned {_describe(values)}, not {expected}", f"return {expected}")
    for hint, value in zip(hints, cast("Sequence[Any]", values), strict=True):
        if isinstance(hint.type, TensorType) and not _is_valid(batch, hint.type, value):
            rows = "" if batch.mode == "alone" else f" for a batch (batch={batch.mode})"
            fix = f"return {hint.type} for each row, or change the annotation" if rows else f"return {hint.type}"
            raise _bad_result(body, f"op {name} is declared to return {hint.type}, got {_describe(value)}{rows}", fix)


def _is_valid(batch: Batch, type_: TensorType, value: Any) -> bool:
    dims = type_.dims
    if batch.mode != "alone":
        if not is_array(value):  # one value per row
            return hasattr(value, "__len__") and all(_is_tensor(type_, dims, row) for row in value)
        if batch.axis(type_) is None or batch.mode == "padded":
            dims = ("rows", *dims)
    return _is_tensor(type_, dims, value)


def _is_tensor(type_: TensorType, dims: tuple[int | str, ...], value: Any) -> bool:
    return (
        is_array(value)
        and len(value.shape) == len(dims)
        and all(isinstance(dim, str) or dim == size for dim, size in zip(dims, value.shape, strict=True))
        and (type_.dtype == (dtype := _dtype_name(value)) or (type_.dtype == "float" and dtype in FLOATS))
    )


def _dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _describe(value: Any) -> str:
    if is_array(value):
        return f"{_dtype_name(value)}[{', '.join(map(str, value.shape))}]"
    return "None" if value is None else f"a {type(value).__name__}"


def _bad_result(body: Callable[..., Any], problem: str, fix: str) -> BadShape:
    error = BadShape(f"{problem}\n  fix: {fix}")
    code = body.__code__
    # In the form of a traceback, because the frame of the op is gone: logs and `mstar run` show this line.
    error.add_note(f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}')
    return error
