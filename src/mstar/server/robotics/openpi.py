"""The bytes that openpi's robots speak: msgpack, with numpy's arrays and numbers as maps that have a mark.

Only numbers and truth values are read, and nothing is run that a sender chose. Who may connect, and what is done with
an observation, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mstar.server import arrays
from mstar.server.arrays import BadArray

_ARRAY_KEY, _SCALAR_KEY = b"__ndarray__", b"__npgeneric__"
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
_KIND_CODES = {name: letter for letter, name in _KINDS.items()}
_DTYPE_CODE = re.compile(r"[<|]([biuf])(\d)")
_DTYPE_NAME = re.compile(r"([a-z]+)(\d*)")


def pack(value: Any) -> bytes:
    """A value as bytes."""
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
    """How numpy writes a dtype in short."""
    kind, bits = cast("re.Match[str]", _DTYPE_NAME.fullmatch(name)).groups()
    return f"<{_KIND_CODES[kind]}{int(bits) // 8}" if bits not in ("", "8") else f"|{_KIND_CODES[kind]}1"


def unpack(data: bytes) -> Any:
    """The value that was packed. Raises BadArray."""
    try:
        return _decode(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadArray(f"{len(data)} bytes are no msgpack") from error


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    tree = cast("dict[Any, Any]", value)
    if _ARRAY_KEY in tree:
        named = {"dtype": _dtype_name(tree.get(b"dtype")), "shape": tree.get(b"shape"), "data": tree.get(b"data")}
        return arrays.from_json(named)
    if _SCALAR_KEY in tree:
        return tree.get(b"data")  # a plain one is as good
    if not all(isinstance(key, str) for key in tree):
        raise BadArray("the names in an observation are texts")
    return {key: _decode(item) for key, item in tree.items()}


def _dtype_name(code: Any) -> str:
    found = _DTYPE_CODE.fullmatch(code) if isinstance(code, str) else None
    if found is None:
        raise BadArray(f"there are no arrays of dtype {code!r} here; send numbers, with the lowest byte first")
    kind, size = found.groups()
    return "bool" if kind == "b" else f"{_KINDS[kind]}{int(size) * 8}"
