"""msgpack encoding of values with arrays. numpy is optional: without it, arrays are `Array` objects."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mstar.client.responses import Array

_DTYPE_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}


def pack(value: Any) -> bytes:
    """Encode a value; it can contain numpy arrays and torch tensors."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_array)


def _encode_array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        little_endian = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": little_endian.tobytes()}
    fix = "use numbers, strings, lists, dicts and arrays"
    raise TypeError(f"a value of type {type(value).__name__} cannot be encoded\n  fix: {fix}")


def unpack(data: bytes | memoryview) -> Any:
    """Decode a value."""
    return restore_arrays(msgspec.msgpack.decode(data))


def restore_arrays(value: Any) -> Any:
    """Replace encoded arrays in a decoded value by arrays."""
    if isinstance(value, list):
        return [restore_arrays(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    tree = cast("dict[Any, Any]", value)
    if tree.keys() == {"dtype", "shape", "data"}:
        return to_array(tree["dtype"], tree["shape"], tree["data"])
    if b"__ndarray__" in tree:  # openpi's encoding
        code = tree[b"dtype"]
        bits = "" if code[1] == "b" else str(8 * int(code[2:]))
        return to_array(_DTYPE_KINDS[code[1]] + bits, tree[b"shape"], tree[b"data"])
    return {key: restore_arrays(item) for key, item in cast("Mapping[Any, Any]", tree).items()}


def to_array(dtype: str, shape: list[int], data: bytes) -> Any:
    """A numpy array, or an `Array` if numpy is missing or lacks the dtype."""
    if importlib.util.find_spec("numpy") is None or dtype == "bfloat16":
        return Array(dtype, tuple(shape), data)
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype).newbyteorder("<")).reshape(shape)
