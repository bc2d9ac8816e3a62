"""Values with arrays in them, as msgpack carries them. numpy is used when it is there, and not needed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mstar.client.responses import Array

_DTYPE_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}


def pack(value: Any) -> bytes:
    """A value as bytes; arrays of any library may be in it."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_array)


def _encode_array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        low_first = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": low_first.tobytes()}
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent\n  fix: send numbers, texts and arrays")


def unpack(data: bytes | memoryview) -> Any:
    """The value that was packed."""
    return restore_arrays(msgspec.msgpack.decode(data))


def restore_arrays(value: Any) -> Any:
    """A value in which arrays are arrays again."""
    if isinstance(value, list):
        return [restore_arrays(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    tree = cast("dict[Any, Any]", value)
    if tree.keys() == {"dtype", "shape", "data"}:
        return to_array(tree["dtype"], tree["shape"], tree["data"])
    if b"__ndarray__" in tree:  # as robots write it
        code = tree[b"dtype"]
        bits = "" if code[1] == "b" else str(8 * int(code[2:]))
        return to_array(_DTYPE_KINDS[code[1]] + bits, tree[b"shape"], tree[b"data"])
    return {key: restore_arrays(item) for key, item in cast("Mapping[Any, Any]", tree).items()}


def to_array(dtype: str, shape: list[int], data: bytes) -> Any:
    """An array of numpy's if it is there and knows the dtype."""
    if importlib.util.find_spec("numpy") is None or dtype == "bfloat16":
        return Array(dtype, tuple(shape), data)
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype).newbyteorder("<")).reshape(shape)
