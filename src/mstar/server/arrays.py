"""Arrays as clients send and get them: dtype, shape and bytes. Values of any other kind become what JSON knows.

No array library is imported until an array comes, and then it is the array's own. Clients' arrays become numpy's.
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
"""What clients may send, in the order of bytes that the lowest comes first."""
MAX_DIMS = 16
MAX_NPY_HEADER_BYTES = 1024
"""How long the head of a .npy file may be."""
_DTYPE_PREFIXES = {"i": "int", "u": "uint", "f": "float"}
_NPY_HEADER = re.compile(
    r"{'descr': '([<>|])([biuf])([1248])', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\),? ?}\s*"
)
"""The head as numpy writes it. It is a literal of Python, and what reads any of these can be kept busy for long."""
MAX_DIM_SIZE = 1 << 31
"""How large one dimension may be, also of an array in which nothing is."""


class BadArray(ValueError):
    """What came is no array."""


def is_array(value: Any) -> bool:
    """Whether something has the shape and dtype of an array."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


# ---------------------------------------------------------------- from clients
def from_json(value: Mapping[str, Any]) -> Any:
    """The array that {"dtype", "shape", "data"} stands for; data are bytes, or base64. Raises BadArray."""
    try:
        dtype, shape, data = value["dtype"], value["shape"], value["data"]
        content = data if isinstance(data, bytes) else b64decode(data, validate=True)
    except (LookupError, TypeError, ValueError):
        raise BadArray('an array is {"dtype": "float32", "shape": [2, 3], "data": base64}') from None
    return _build_array(dtype, shape, content)


def from_npy(content: bytes) -> Any:
    """The array in a .npy file. Raises BadArray."""
    width = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(content[:8], 0)
    start = 8 + width + int.from_bytes(content[8 : 8 + width], "little")
    head = (
        _NPY_HEADER.fullmatch(content[8 + width : start].decode("latin-1"))
        if width and start < MAX_NPY_HEADER_BYTES
        else None
    )
    if head is None:
        raise BadArray("the file is no .npy file of version 1 or 2, or holds no numbers")
    order, kind, size, fortran, shape = head.groups()
    if order == ">":
        raise BadArray("the bytes of a .npy file must have the lowest first")
    dtype = "bool" if kind == "b" else f"{_DTYPE_PREFIXES[kind]}{8 * int(size)}"
    sizes = [int(one) for one in shape.replace(",", " ").split()]
    rest = content[start:]
    return _build_array(dtype, sizes[::-1], rest).T if fortran == "True" else _build_array(dtype, sizes, rest)


def _build_array(dtype: Any, shape: Any, content: bytes) -> Any:
    if dtype not in DTYPES:
        raise BadArray(f"there are no arrays of dtype {dtype!r} here; there are {', '.join(sorted(DTYPES))}")
    sizes = cast("list[int]", shape)
    is_list = isinstance(shape, list | tuple) and len(sizes) <= MAX_DIMS
    if not is_list or not all(type(size) is int and size >= 0 for size in sizes):
        raise BadArray(f"a shape is a list of at most {MAX_DIMS} numbers, 0 or more")
    numpy = importlib.import_module("numpy")
    form = numpy.dtype(dtype).newbyteorder("<")
    if prod(sizes) * form.itemsize != len(content) or max(sizes, default=0) > MAX_DIM_SIZE:
        raise BadArray(f"{len(content)} bytes are not an array of {dtype} with the shape {list(sizes)}")
    return numpy.frombuffer(bytearray(content), dtype=form).reshape(sizes)


# ---------------------------------------------------------------- for clients
def to_plain(value: Any, encode_bytes: Callable[[bytes], Any]) -> Any:
    """A value as JSON and msgpack know it; `coded` says how bytes are written."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return encode_bytes(value)
    if is_array(value):
        return _array_to_json(value, encode_bytes)
    if isinstance(value, enum.Enum):
        return value.name
    if is_dataclass(value):
        return {own.name: to_plain(getattr(value, own.name), encode_bytes) for own in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, encode_bytes) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item, encode_bytes) for item in cast("list[Any]", value)]
    return str(value)


def to_base64(content: bytes) -> str:
    """Bytes as JSON writes them."""
    return b64encode(content).decode()


def _array_to_json(array: Any, encode_bytes: Callable[[bytes], Any]) -> dict[str, Any]:
    name = str(array.dtype).removeprefix("torch.")
    if hasattr(array, "detach"):  # a tensor: seen as bytes, since numpy does not know all dtypes
        torch = importlib.import_module("torch")
        content = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    else:
        content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = array.dtype.name
    return {"dtype": name, "shape": list(array.shape), "data": encode_bytes(content)}
