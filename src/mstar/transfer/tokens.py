"""A short path for tokens: int64 arrays and tensors with one element, the values that are sent most often.

The bytes are those of `mstar.transfer.values`, which decodes them too.
"""

from __future__ import annotations

import functools
import importlib
import struct
import sys
from collections.abc import Callable
from typing import Any

_ELEMENT = struct.Struct("<q")
_SHAPE = struct.pack("<BQ", 1, 1)
# What all tokens of a library begin with: msgpack extension, its bytes, array; inline, dtype, shape [1].
_FROM_TORCH = b"\xc7\x19\x08" + b"\0\x06tint64" + _SHAPE
_FROM_NUMPY = b"\xc7\x17\x08" + b"\0\x04n<i8" + _SHAPE
TOKEN_SIZES = frozenset((len(_FROM_TORCH) + _ELEMENT.size, len(_FROM_NUMPY) + _ELEMENT.size))
"""Lengths of an encoded token, in bytes."""


def pack_token(value: Any) -> bytes | None:
    """Encode a token; None for any other value."""
    form = _form_of(type(value))
    if form is None:
        return None
    first_bytes, int64 = form
    if value.dtype != int64 or value.shape != (1,):
        return None
    return first_bytes + _ELEMENT.pack(value.item())


@functools.lru_cache(1024)
def _form_of(kind: type) -> tuple[bytes, Any] | None:
    """What tokens of an array type begin with, and their dtype. Who has an array has imported its library."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and kind is torch.Tensor:
        return _FROM_TORCH, torch.int64
    if numpy is not None and kind is numpy.ndarray:
        return _FROM_NUMPY, numpy.dtype("<i8")
    return None


def unpack_token(data: bytes, *, numpy_only: bool) -> Any:
    """Decode a token, a tensor as a numpy array with `numpy_only`; None for any other value."""
    first_bytes = data[: -_ELEMENT.size]
    if first_bytes == _FROM_NUMPY:
        numpy_only = True
    elif first_bytes != _FROM_TORCH:
        return None
    return _array_from(numpy_only)(bytearray(data[-_ELEMENT.size :]))


@functools.cache
def _array_from(numpy_only: bool) -> Callable[[bytearray], Any]:
    """Makes an array of the bytes of int64 elements."""
    library = importlib.import_module("numpy" if numpy_only else "torch")
    return functools.partial(library.frombuffer, dtype=library.int64)
