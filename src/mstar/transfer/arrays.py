"""Array serialization: numpy arrays and torch tensors as header (dtype, shape) plus data, inline or placed out of band.

Packing imports neither library: a process with an array has done so. Unpacked arrays own writable memory; tensors are
on the CPU, or numpy arrays with `numpy_only`. The caller decides where placed data goes.
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
"""Minimum size in bytes of an array that is placed out of band."""

PlaceArray: TypeAlias = Callable[[memoryview], int | None]
"""Stores the bytes of a large array. Returns its index, or None if it must stay inline."""

_INLINE, _PLACED = b"\0", b"\1"
_SHAPES = [struct.Struct(f"<B{dims}Q") for dims in range(65)]
_NUMBER = struct.Struct("<Q")
_NUMPY_DTYPE = re.compile(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}\w{1,2}\])?", re.ASCII)
"""Supported numpy dtypes, in numpy's notation: those fully described by their bytes."""
_TORCH_DTYPES = {f"{kind}{bits}": "" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_TORCH_DTYPES |= dict.fromkeys(("bool", "float16", "float32", "float64", "complex64", "complex128"), "")
_TORCH_DTYPES |= {"bfloat16": "int16", "complex32": "int32"}
_TORCH_DTYPES |= {f"float8_{kind}": "uint8" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
"""Supported torch dtypes, each with the dtype to view it as if numpy lacks it."""


# ---------------------------------------------------------------- packing
def array_packer(kind: type) -> Callable[[Any, PlaceArray | None], bytes] | None:
    """Packer for values of a type; None if it is not an array type."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and (kind is torch.Tensor or getattr(kind, "is_sent_as_tensor", False)):
        return _pack_tensor
    if numpy is not None and kind is numpy.ndarray:
        return functools.partial(_pack_array, "n")
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda value, place: _pack_array("s", numpy.asarray(value), place)
    return None


def _pack_tensor(value: Any, place: PlaceArray | None) -> bytes:
    known = _torch_headers().get(value.dtype)
    if known is None:
        what = f"cannot send a tensor of dtype {value.dtype} to another process"
        raise NotSerializable(f"{what}\n  fix: convert it to a supported dtype")
    header, view_dtype = known
    try:
        array = _to_numpy(value, view_dtype)
    except (RuntimeError, TypeError):  # on another device, requires grad, conjugated, or not dense
        try:
            array = _to_numpy(value.detach().cpu().resolve_conj().resolve_neg(), view_dtype)
        except (RuntimeError, TypeError) as error:
            what = f"cannot send a tensor of layout {value.layout} on {value.device} to another process: {error}"
            raise NotSerializable(f"{what}\n  fix: send a dense tensor with data") from None
    return _encode_array(header, array, place)


def _to_numpy(value: Any, view_dtype: Any) -> Any:
    return value.numpy() if view_dtype is None else value.view(view_dtype).numpy()


@functools.cache
def _torch_headers() -> dict[Any, tuple[bytes, Any]]:
    """Encoded name and numpy view of each torch dtype."""
    torch = sys.modules["torch"]
    available = [(name, view_dtype) for name, view_dtype in _TORCH_DTYPES.items() if hasattr(torch, name)]
    return {
        getattr(torch, name): (_encode_header("t" + name), getattr(torch, view_dtype, None))
        for name, view_dtype in available
    }


def _pack_array(library: str, value: Any, place: PlaceArray | None) -> bytes:
    return _encode_array(_numpy_header(library, value.dtype), value, place)


@functools.lru_cache(256)
def _numpy_header(library: str, dtype: Any) -> bytes:
    if not _NUMPY_DTYPE.fullmatch(dtype.str):
        what = f"cannot send an array of dtype {dtype} to another process"
        raise NotSerializable(f"{what}\n  fix: send numbers or strings")
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
    """Decode an array; with `numpy_only` as a numpy array if numpy has its dtype.

    Invalid bytes can raise almost any exception: see `values.unpack`.
    """
    end = 2 + data[1]
    name = str(data[2:end], "ascii")
    form = _SHAPES[data[end]]
    _, *shape = form.unpack_from(data, end)
    rest = data[end + form.size :]
    content = placed[_NUMBER.unpack(rest)[0]] if data[0] else bytearray(rest)
    library, dtype = _parse_dtype(name, numpy_only=numpy_only)
    if library.__name__ == "torch" and isinstance(content, memoryview) and content.readonly:
        content = bytearray(content)  # a tensor cannot be read-only
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes do not match an array of {name[1:]} and shape {shape}")
    array = library.frombuffer(content, dtype=dtype) if content else library.empty(shape, dtype=dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    return array[()] if name[0] == "s" else array


@functools.lru_cache(256)
def _parse_dtype(name: str, *, numpy_only: bool) -> tuple[Any, Any]:
    """Library and dtype for an encoded dtype name."""
    if numpy_only and name[0] == "t" and _TORCH_DTYPES.get(name[1:]) == "":
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    if name[0] == "t" and name[1:] in _TORCH_DTYPES:
        torch = importlib.import_module("torch")
        return torch, getattr(torch, name[1:])
    if name[0] in "ns" and _NUMPY_DTYPE.fullmatch(name[1:]):
        numpy = importlib.import_module("numpy")
        return numpy, numpy.dtype(name[1:])
    raise ValueError(f"unknown array dtype {name!r}")
