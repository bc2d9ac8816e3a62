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

from mstar.errors import NotSerializable

LARGE_ARRAY_BYTES = 16 << 10
"""From how many bytes on an array is offered to be placed elsewhere."""

PlaceArray: TypeAlias = Callable[[memoryview], int | None]
"""Takes the bytes of a large array; the number by which they are found again, or None if they must stay inline."""

_INLINE, _PLACED = b"\0", b"\1"
_SHAPES = [struct.Struct(f"<B{dims}Q") for dims in range(65)]
_NUMBER = struct.Struct("<Q")
_NUMPY_DTYPE = re.compile(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}\w{1,2}\])?", re.ASCII)
"""The dtypes of numpy whose bytes say all, as numpy writes them."""
_TORCH_DTYPES = {f"{kind}{bits}": "" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_TORCH_DTYPES |= dict.fromkeys(("bool", "float16", "float32", "float64", "complex64", "complex128"), "")
_TORCH_DTYPES |= {"bfloat16": "int16", "complex32": "int32"}
_TORCH_DTYPES |= {f"float8_{kind}": "uint8" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
"""The dtypes of torch, and what those that numpy does not have are seen as there."""


# ---------------------------------------------------------------- packing
def array_packer(kind: type) -> Callable[[Any, PlaceArray | None], bytes] | None:
    """How values of a type become bytes, if they are arrays."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and kind is torch.Tensor:
        return _pack_tensor
    if numpy is not None and kind is numpy.ndarray:
        return functools.partial(_pack_array, "n")
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda value, place: _pack_array("s", numpy.asarray(value), place)
    return None


def _pack_tensor(value: Any, place: PlaceArray | None) -> bytes:
    known = _torch_headers().get(value.dtype)
    if known is None:
        what = f"a tensor of dtype {value.dtype} cannot be sent to another process"
        raise NotSerializable(f"{what}\n  fix: send another dtype")
    head, seen_as = known
    try:
        array = _to_numpy(value, seen_as)
    except (RuntimeError, TypeError):  # on another device, asking for gradients, conjugated; or not dense at all
        try:
            array = _to_numpy(value.detach().cpu().resolve_conj().resolve_neg(), seen_as)
        except (RuntimeError, TypeError) as error:
            what = f"a tensor of layout {value.layout} on {value.device} cannot be sent to another process: {error}"
            raise NotSerializable(f"{what}\n  fix: send a dense one that has data") from None
    return _encode_array(head, array, place)


def _to_numpy(value: Any, view_dtype: Any) -> Any:
    return value.numpy() if view_dtype is None else value.view(view_dtype).numpy()


@functools.cache
def _torch_headers() -> dict[Any, tuple[bytes, Any]]:
    """For each dtype of torch its name in bytes, and what numpy sees it as if it does not know it."""
    torch = sys.modules["torch"]
    there = [(name, seen_as) for name, seen_as in _TORCH_DTYPES.items() if hasattr(torch, name)]
    return {
        getattr(torch, name): (_encode_header("t" + name), getattr(torch, seen_as, None)) for name, seen_as in there
    }


def _pack_array(library: str, value: Any, place: PlaceArray | None) -> bytes:
    return _encode_array(_numpy_header(library, value.dtype), value, place)


@functools.lru_cache(256)
def _numpy_header(library: str, dtype: Any) -> bytes:
    if not _NUMPY_DTYPE.fullmatch(dtype.str):
        what = f"an array of dtype {dtype} cannot be sent to another process"
        raise NotSerializable(f"{what}\n  fix: send numbers or texts")
    return _encode_header(library + dtype.str)


def _encode_header(name: str) -> bytes:
    return bytes([len(name)]) + name.encode()


def _encode_array(header: bytes, array: Any, place: PlaceArray | None) -> bytes:
    shape = array.shape
    header += _SHAPES[len(shape)].pack(len(shape), *shape)
    if place is not None and array.nbytes >= LARGE_ARRAY_BYTES:
        number = place(memoryview(array.ravel().view("u1")))
        if number is not None:
            return _PLACED + header + _NUMBER.pack(number)
    return _INLINE + header + array.tobytes()


# ---------------------------------------------------------------- unpacking
def unpack_array(data: memoryview, placed: Sequence[bytearray | memoryview], *, numpy_only: bool = False) -> Any:
    """The array that was packed; if `is_plain`, of numpy wherever that has its dtype.

    Bytes that were not packed here may raise almost anything.
    """
    end = 2 + data[1]
    name = str(data[2:end], "ascii")
    form = _SHAPES[data[end]]
    _, *shape = form.unpack_from(data, end)
    rest = data[end + form.size :]
    content = placed[_NUMBER.unpack(rest)[0]] if data[0] else bytearray(rest)
    library, dtype = _parse_dtype(name, numpy_only=numpy_only)
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are not an array of {name[1:]} and shape {shape}")
    array = library.frombuffer(content, dtype=dtype) if content else library.empty(shape, dtype=dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    return array[()] if name[0] == "s" else array


@functools.lru_cache(256)
def _parse_dtype(name: str, *, numpy_only: bool) -> tuple[Any, Any]:
    """The library that makes arrays of a dtype, and the dtype."""
    if numpy_only and name[0] == "t" and _TORCH_DTYPES.get(name[1:]) == "":
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    if name[0] == "t" and name[1:] in _TORCH_DTYPES:
        torch = importlib.import_module("torch")
        return torch, getattr(torch, name[1:])
    if name[0] in "ns" and _NUMPY_DTYPE.fullmatch(name[1:]):
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    raise ValueError(f"there are no arrays of {name!r}")
