"""Values with arrays in them, as msgpack carries them. numpy is used when it is there, and not needed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mstar.client.answers import Array

_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}


def pack(value: Any) -> bytes:
    """A value as bytes; arrays of any library may be in it."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        low_first = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": low_first.tobytes()}
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent\n  fix: send numbers, texts and arrays")


def unpack(data: bytes | memoryview) -> Any:
    """The value that was packed."""
    return opened(msgspec.msgpack.decode(data))


def opened(value: Any) -> Any:
    """A value in which arrays are arrays again."""
    if isinstance(value, list):
        return [opened(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    tree = cast("dict[Any, Any]", value)
    if tree.keys() == {"dtype", "shape", "data"}:
        return made(tree["dtype"], tree["shape"], tree["data"])
    if b"__ndarray__" in tree:  # as robots write it
        code = tree[b"dtype"]
        bits = "" if code[1] == "b" else str(8 * int(code[2:]))
        return made(_KINDS[code[1]] + bits, tree[b"shape"], tree[b"data"])
    return {key: opened(item) for key, item in cast("Mapping[Any, Any]", tree).items()}


def made(dtype: str, shape: list[int], data: bytes) -> Any:
    """An array of numpy's if it is there and knows the dtype."""
    if importlib.util.find_spec("numpy") is None or dtype == "bfloat16":
        return Array(dtype, tuple(shape), data)
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype).newbyteorder("<")).reshape(shape)
