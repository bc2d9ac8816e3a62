"""A short path for tokens: int64 tensors with one element, the values that are sent most often.

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
_FIRST_BYTES = b"\xc7\x19\x08" + b"\0\x06tint64" + struct.pack("<BQ", 1, 1)
"""What all tokens begin with: msgpack extension, 25 bytes, array; inline, dtype, shape [1]."""
TOKEN_BYTES = len(_FIRST_BYTES) + _ELEMENT.size
"""Length of an encoded token."""


def pack_token(value: Any) -> bytes | None:
    """Encode a token; None for any other value."""
    if (torch := sys.modules.get("torch")) is None or type(value) is not torch.Tensor:
        return None
    if value.ndim != 1 or value.dtype is not torch.int64 or value.numel() != 1:
        return None
    return _FIRST_BYTES + _ELEMENT.pack(value.item())


def unpack_token(data: bytes, *, numpy_only: bool) -> Any:
    """Decode a token, as a numpy array with `numpy_only`; None for any other value."""
    if len(data) != TOKEN_BYTES or not data.startswith(_FIRST_BYTES):
        return None
    return _array_from(numpy_only)(bytearray(data[-_ELEMENT.size :]))


@functools.cache
def _array_from(numpy_only: bool) -> Callable[[bytearray], Any]:
    """Makes an array of the bytes of int64 elements."""
    library = importlib.import_module("numpy" if numpy_only else "torch")
    return functools.partial(library.frombuffer, dtype=library.int64)
