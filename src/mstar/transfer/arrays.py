"""Arrays of numpy and torch as bytes and back: dtype, shape, then the data, or a number that says where that was put.

Neither library is imported for packing: whoever holds an array has done that. Arrays come back in memory of their own
that can be written to, tensors on the CPU; or as arrays of numpy, where torch is not to be loaded for them. Where large
ones are placed, this module does not know.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mstar.transfer.errors import Unpackable

LARGE = 16 << 10
"""From how many bytes on an array is offered to be placed elsewhere."""

Place: TypeAlias = Callable[[memoryview], int | None]
"""Takes the bytes of a large array; the number by which they are found again, or None if they must stay inline."""

_INLINE, _PLACED = b"\0", b"\1"
_SHAPES = [struct.Struct(f"<B{dims}Q") for dims in range(65)]
_NUMBER = struct.Struct("<Q")
_NUMPY = re.compile(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}\w{1,2}\])?", re.ASCII)
"""The dtypes of numpy whose bytes say all, as numpy writes them."""
_TORCH = {f"{kind}{bits}": "" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_TORCH |= dict.fromkeys(("bool", "float16", "float32", "float64", "complex64", "complex128"), "")
_TORCH |= {"bfloat16": "int16", "complex32": "int32"}
_TORCH |= {f"float8_{kind}": "uint8" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
"""The dtypes of torch, and what those that numpy does not have are seen as there."""


# ---------------------------------------------------------------- packing
def array_packer(kind: type) -> Callable[[Any, Place | None], bytes] | None:
    """How values of a type become bytes, if they are arrays."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and kind is torch.Tensor:
        return _tensor
    if numpy is not None and kind is numpy.ndarray:
        return functools.partial(_array, "n")
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda value, place: _array("s", numpy.asarray(value), place)
    return None


def _tensor(value: Any, place: Place | None) -> bytes:
    known = _torch_heads().get(value.dtype)
    if known is None:
        what = f"a tensor of dtype {value.dtype} cannot be sent to another process"
        raise Unpackable(f"{what}\n  fix: send another dtype")
    head, seen_as = known
    try:
        array = _seen(value, seen_as)
    except (RuntimeError, TypeError):  # on another device, asking for gradients, conjugated; or not dense at all
        try:
            array = _seen(value.detach().cpu().resolve_conj().resolve_neg(), seen_as)
        except (RuntimeError, TypeError) as error:
            what = f"a tensor of layout {value.layout} on {value.device} cannot be sent to another process: {error}"
            raise Unpackable(f"{what}\n  fix: send a dense one that has data") from None
    return _packed(head, array, place)


def _seen(value: Any, seen_as: Any) -> Any:
    return value.numpy() if seen_as is None else value.view(seen_as).numpy()


@functools.cache
def _torch_heads() -> dict[Any, tuple[bytes, Any]]:
    """For each dtype of torch its name in bytes, and what numpy sees it as if it does not know it."""
    torch = sys.modules["torch"]
    there = [(name, seen_as) for name, seen_as in _TORCH.items() if hasattr(torch, name)]
    return {getattr(torch, name): (_head("t" + name), getattr(torch, seen_as, None)) for name, seen_as in there}


def _array(library: str, value: Any, place: Place | None) -> bytes:
    return _packed(_numpy_head(library, value.dtype), value, place)


@functools.lru_cache(256)
def _numpy_head(library: str, dtype: Any) -> bytes:
    if not _NUMPY.fullmatch(dtype.str):
        what = f"an array of dtype {dtype} cannot be sent to another process"
        raise Unpackable(f"{what}\n  fix: send numbers or texts")
    return _head(library + dtype.str)


def _head(name: str) -> bytes:
    return bytes([len(name)]) + name.encode()


def _packed(head: bytes, array: Any, place: Place | None) -> bytes:
    shape = array.shape
    head += _SHAPES[len(shape)].pack(len(shape), *shape)
    if place is not None and array.nbytes >= LARGE:
        number = place(memoryview(array.ravel().view("u1")))
        if number is not None:
            return _PLACED + head + _NUMBER.pack(number)
    return _INLINE + head + array.tobytes()


# ---------------------------------------------------------------- unpacking
def unpack_array(data: memoryview, placed: Sequence[bytearray | memoryview], *, is_plain: bool = False) -> Any:
    """The array that was packed; if `is_plain`, of numpy wherever that has its dtype.

    Bytes that were not packed here may raise almost anything.
    """
    end = 2 + data[1]
    name = str(data[2:end], "ascii")
    form = _SHAPES[data[end]]
    _, *shape = form.unpack_from(data, end)
    rest = data[end + form.size :]
    content = placed[_NUMBER.unpack(rest)[0]] if data[0] else bytearray(rest)
    library, dtype = _dtype_of(name, is_plain=is_plain)
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are not an array of {name[1:]} and shape {shape}")
    array = library.frombuffer(content, dtype=dtype) if content else library.empty(shape, dtype=dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    return array[()] if name[0] == "s" else array


@functools.lru_cache(256)
def _dtype_of(name: str, *, is_plain: bool) -> tuple[Any, Any]:
    """The library that makes arrays of a dtype, and the dtype."""
    if is_plain and name[0] == "t" and _TORCH.get(name[1:]) == "":
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    if name[0] == "t" and name[1:] in _TORCH:
        torch = importlib.import_module("torch")
        return torch, getattr(torch, name[1:])
    if name[0] in "ns" and _NUMPY.fullmatch(name[1:]):
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    raise ValueError(f"there are no arrays of {name!r}")
