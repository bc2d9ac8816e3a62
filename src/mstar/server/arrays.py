"""Arrays in requests and responses: {"dtype", "shape", "data"} or .npy. Other values become plain JSON.

Arrays from clients become numpy arrays. numpy and torch are imported only when an array is converted.
"""

from __future__ import annotations

import enum
import importlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any, cast

DTYPES = frozenset({"bool", "float16", "float32", "float64"}) | {
    f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)
}
"""Supported dtypes, little-endian."""
MAX_DIMS = 16
MAX_NPY_HEADER_BYTES = 1024
"""Maximum size of a .npy header."""
_DTYPE_PREFIXES = {"i": "int", "u": "uint", "f": "float"}
_NPY_HEADER = re.compile(
    r"{'descr': '([<>|])([biuf])([1248])', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\),? ?}\s*"
)
"""A .npy header as numpy writes it. A regex: parsing an untrusted Python literal can take long."""
MAX_DIM_SIZE = 1 << 31
"""Maximum size of one dimension, also of an empty array."""


class BadArray(ValueError):
    """The client sent a malformed array."""


def is_array(value: Any) -> bool:
    """Whether a value has a dtype and a shape."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


# ---------------------------------------------------------------- requests
def from_json(value: Mapping[str, Any]) -> Any:
    """Decode {"dtype", "shape", "data"}, with data as bytes or base64. Raises BadArray."""
    try:
        dtype, shape, data = value["dtype"], value["shape"], value["data"]
        content = data if isinstance(data, bytes) else b64decode(data, validate=True)
    except (LookupError, TypeError, ValueError):
        raise BadArray('malformed array; fix: send {"dtype": "float32", "shape": [2, 3], "data": base64}') from None
    return _build_array(dtype, shape, content)


def from_npy(content: bytes) -> Any:
    """Decode a .npy file. Raises BadArray."""
    width = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(content[:8], 0)
    start = 8 + width + int.from_bytes(content[8 : 8 + width], "little")
    header = (
        _NPY_HEADER.fullmatch(content[8 + width : start].decode("latin-1"))
        if width and start < MAX_NPY_HEADER_BYTES
        else None
    )
    if header is None:
        raise BadArray("not a .npy file of version 1 or 2 with a numeric dtype")
    order, kind, size, fortran, shape = header.groups()
    if order == ">":
        raise BadArray("the .npy file is big-endian; fix: convert it to little-endian")
    dtype = "bool" if kind == "b" else f"{_DTYPE_PREFIXES[kind]}{8 * int(size)}"
    sizes = [int(size) for size in shape.replace(",", " ").split()]
    data = content[start:]
    return _build_array(dtype, sizes[::-1], data).T if fortran == "True" else _build_array(dtype, sizes, data)


def _build_array(dtype: Any, shape: Any, content: bytes) -> Any:
    if dtype not in DTYPES:
        raise BadArray(f"unsupported dtype {dtype!r}; fix: use one of {', '.join(sorted(DTYPES))}")
    sizes = cast("list[int]", shape)
    is_list = isinstance(shape, list | tuple) and len(sizes) <= MAX_DIMS
    if not is_list or not all(type(size) is int and size >= 0 for size in sizes):
        raise BadArray(f"invalid shape; fix: send a list of at most {MAX_DIMS} integers, each 0 or more")
    numpy = importlib.import_module("numpy")
    little_endian = numpy.dtype(dtype).newbyteorder("<")
    if prod(sizes) * little_endian.itemsize != len(content) or max(sizes, default=0) > MAX_DIM_SIZE:
        raise BadArray(f"{len(content)} bytes do not match dtype {dtype} and shape {list(sizes)}")
    return numpy.frombuffer(bytearray(content), dtype=little_endian).reshape(sizes)


# ---------------------------------------------------------------- responses
def to_plain(value: Any, encode_bytes: Callable[[bytes], Any]) -> Any:
    """Convert a value to plain JSON or msgpack types; `encode_bytes` converts bytes."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return encode_bytes(value)
    if is_array(value):
        return _array_to_json(value, encode_bytes)
    if isinstance(value, enum.Enum):
        return value.name
    if is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name), encode_bytes) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, encode_bytes) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item, encode_bytes) for item in cast("list[Any]", value)]
    return str(value)


def to_base64(content: bytes) -> str:
    """Encode bytes for JSON."""
    return b64encode(content).decode()


def _array_to_json(array: Any, encode_bytes: Callable[[bytes], Any]) -> dict[str, Any]:
    name = str(array.dtype).removeprefix("torch.")
    if hasattr(array, "detach"):  # a torch tensor, viewed as bytes because numpy lacks some dtypes (bfloat16)
        torch = importlib.import_module("torch")
        content = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    else:
        content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = array.dtype.name
    return {"dtype": name, "shape": list(array.shape), "data": encode_bytes(content)}
