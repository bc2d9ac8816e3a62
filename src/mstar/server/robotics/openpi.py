"""Codec of openpi's wire format: msgpack with numpy arrays and scalars as tagged maps (`msgpack_numpy`).

Only boolean, integer and float arrays are decoded, never pickled objects, so a sender cannot run code. The endpoints
are in `actions`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mstar.server import arrays
from mstar.server.arrays import BadArray

_ARRAY_KEY = b"__ndarray__"
_SCALAR_KEY = b"__npgeneric__"
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
_KIND_CODES = {name: letter for letter, name in _KINDS.items()}
_DTYPE_CODE = re.compile(r"[<|]([biuf])(\d)")
_DTYPE_NAME = re.compile(r"([a-z]+)(\d*)")


def pack(value: Any) -> bytes:
    """Encode a value, arrays included."""
    return msgspec.msgpack.encode(_encode(value))


def _encode(value: Any) -> Any:
    if arrays.is_array(value):
        plain = arrays.to_plain(value, bytes)
        return {
            _ARRAY_KEY: True,
            b"data": plain["data"],
            b"dtype": _dtype_code(plain["dtype"]),
            b"shape": plain["shape"],
        }
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in cast("list[Any]", value)]
    return value


def _dtype_code(name: str) -> str:
    """Numpy's dtype string, such as `<f4`."""
    kind, bits = cast("re.Match[str]", _DTYPE_NAME.fullmatch(name)).groups()
    return f"<{_KIND_CODES[kind]}{int(bits) // 8}" if bits not in ("", "8") else f"|{_KIND_CODES[kind]}1"


def unpack(data: bytes) -> Any:
    """Decode a value. Raises BadArray."""
    try:
        return _decode(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadArray(f"the message of {len(data)} bytes is not valid msgpack") from error


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    tree = cast("dict[Any, Any]", value)
    if _ARRAY_KEY in tree:
        fields = {"dtype": _dtype_name(tree.get(b"dtype")), "shape": tree.get(b"shape"), "data": tree.get(b"data")}
        return arrays.from_json(fields)
    if _SCALAR_KEY in tree:
        return tree.get(b"data")  # a plain Python number
    if not all(isinstance(key, str) for key in tree):
        raise BadArray("a key of the observation is not a string. fix: use strings as keys")
    return {key: _decode(item) for key, item in tree.items()}


def _dtype_name(code: Any) -> str:
    match = _DTYPE_CODE.fullmatch(code) if isinstance(code, str) else None
    if match is None:
        raise BadArray(f"unsupported dtype {str(code)[:32]!r}. fix: send little-endian bool, int, uint or float arrays")
    kind, size = match.groups()
    return "bool" if kind == "b" else f"{_KINDS[kind]}{int(size) * 8}"
