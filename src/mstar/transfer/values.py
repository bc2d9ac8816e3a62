"""Author values as bytes and back, without running anything that a sender chose.

Plain values, lists and dicts are msgpack. What that does not tell apart (tuples, sets, dataclasses, enums, integers of
any size, arrays) is an extension type of it. A value gives the same bytes in every process, unless an array of it is
placed elsewhere; where that is, this module does not know.

A dataclass is restored field by field and its `__init__` is not run: it is what it was, not what it would be if it were
made again.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec
from msgspec.msgpack import Ext, decode, encode

from mstar.errors import NotSerializable, ReadFailed
from mstar.transfer.arrays import PlaceArray, array_packer, unpack_array

_TUPLE, _SET, _FROZENSET, _DICT, _DATACLASS, _ENUM, _INT, _STR, _ARRAY = range(9)


# ---------------------------------------------------------------- packing
def pack(value: Any, place: PlaceArray | None = None) -> bytes:
    """A value as bytes. Raises Unpackable."""
    try:
        return encode(_to_msgpack(value, place))
    except RecursionError:
        fix = "send a value that is not part of itself"
        raise NotSerializable(f"a {type(value).__name__} is nested too deeply to be sent\n  fix: {fix}") from None


def _to_msgpack(value: Any, place: PlaceArray | None) -> Any:
    """A value as what msgpack knows."""
    return _packer(type(value))(value, place)


@functools.lru_cache(1024)
def _packer(kind: type) -> Callable[[Any, PlaceArray | None], Any]:
    """How values of a type are packed."""
    if kind in _PACKERS:
        return _PACKERS[kind]
    if (array := array_packer(kind)) is not None:
        return lambda value, place: Ext(_ARRAY, array(value, place))
    if issubclass(kind, enum.Enum):
        return functools.partial(_enum, _class_path(kind))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_dataclass, _class_path(kind), _fields(kind))
    fix = "send plain values, lists, dicts, dataclasses, enums or arrays"
    raise NotSerializable(f"a {kind.__module__}.{kind.__qualname__} cannot be sent to another process\n  fix: {fix}")


def _identity(value: Any, _: PlaceArray | None) -> Any:
    return value


def _int(value: int, _: PlaceArray | None) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _str(value: str, _: PlaceArray | None) -> Any:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a pair, which Python allows and UTF-8 does not
            return Ext(_STR, value.encode(errors="surrogatepass"))
    return value


def _list(value: list[Any], place: PlaceArray | None) -> Any:
    if set(map(type, value)) == {int} and min(value) >= -(1 << 63) and max(value) < 1 << 64:
        return value  # a prompt, which may be long
    return [_to_msgpack(item, place) for item in value]


def _tuple(value: tuple[Any, ...], place: PlaceArray | None) -> Any:
    return Ext(_TUPLE, encode([_to_msgpack(item, place) for item in value]))


def _set(code: int, value: set[Any], place: PlaceArray | None) -> Any:
    return Ext(
        code, encode(sorted(encode(_to_msgpack(item, place)) for item in value))
    )  # its own order differs by process


def _dict(value: dict[Any, Any], place: PlaceArray | None) -> Any:
    if all(type(key) is str and key.isascii() for key in value):
        return {key: _to_msgpack(item, place) for key, item in value.items()}
    return Ext(_DICT, encode([_to_msgpack(each, place) for pair in value.items() for each in pair]))


def _enum(name: str, value: enum.Enum, place: PlaceArray | None) -> Any:
    which = value.value if isinstance(value, enum.Flag) else value.name  # several flags together have no name
    return Ext(_ENUM, encode([name, _to_msgpack(which, place)]))


def _dataclass(name: str, fields: Sequence[str], value: Any, place: PlaceArray | None) -> Any:
    return Ext(
        _DATACLASS,
        encode([name, {own: _to_msgpack(getattr(value, own), place) for own in fields if hasattr(value, own)}]),
    )


_PACKERS: dict[type, Callable[[Any, PlaceArray | None], Any]] = {
    type(None): _identity,
    bool: _identity,
    int: _int,
    float: _identity,
    str: _str,
    bytes: _identity,
    list: _list,
    tuple: _tuple,
    set: functools.partial(_set, _SET),
    frozenset: functools.partial(_set, _FROZENSET),
    dict: _dict,
}


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _class_path(kind: type) -> str:
    """How another process finds a class."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or _find_class(name) is not kind:
        fix = "define it at the top of a module that both processes import"
        raise NotSerializable(f"no other process would find the class {name}\n  fix: {fix}")
    if not issubclass(kind, enum.Enum):
        try:
            object.__new__(kind)
        except TypeError as error:  # it is also a list, an exception or the like, which is more than its fields
            fix = "send a dataclass that is nothing else"
            raise NotSerializable(f"a {name} has more to it than its fields: {error}\n  fix: {fix}") from None
    return name


# ---------------------------------------------------------------- unpacking
_DECODE_ERRORS = (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError)
_DECODE_ERRORS += (ArithmeticError, RuntimeError, struct.error)
"""What bytes that were not packed here may lead to."""


def unpack(data: bytes | memoryview, placed: Sequence[bytearray | memoryview] = (), *, numpy_only: bool = False) -> Any:
    """The value that was packed; `placed` are the bytes of its arrays that are not inline. Raises ReadFailed.

    If `is_plain`, tensors are arrays of numpy.
    """
    try:
        return _Decoder(placed, numpy_only=numpy_only).read(data)
    except _DECODE_ERRORS as error:
        fix = "send it again; if that does not help, the two processes run different code"
        raise ReadFailed(f"{len(data)} bytes hold no value: {error}\n  fix: {fix}") from error


class _Decoder:
    """Turns extension types back into what they stand for."""

    def __init__(self, placed: Sequence[bytearray | memoryview], *, numpy_only: bool) -> None:
        self._placed = placed
        self._numpy_only = numpy_only

    def read(self, data: bytes | memoryview) -> Any:
        return decode(data, ext_hook=self._extension)

    def _extension(self, code: int, data: memoryview) -> Any:
        if code == _ARRAY:
            return unpack_array(data, self._placed, numpy_only=self._numpy_only)
        return _DECODERS[code](self, data)

    def set(self, data: memoryview) -> set[Any]:
        return {self.read(item) for item in self.read(data)}

    def dict(self, data: memoryview) -> dict[Any, Any]:
        each = iter(self.read(data))
        return dict(zip(each, each, strict=True))

    def enum(self, data: memoryview) -> enum.Enum:
        name, which = self.read(data)
        kind = _find_class(name)
        if kind is None or not issubclass(kind, enum.Enum):
            raise TypeError(f"this process has no enum {name!r}")
        return kind(which) if issubclass(kind, enum.Flag) else kind.__members__[which]

    def dataclass(self, data: memoryview) -> Any:
        name, given = self.read(data)
        kind = _find_class(name)
        if kind is None or not dataclasses.is_dataclass(kind):
            raise TypeError(f"this process has no dataclass {name!r}")
        if unknown := given.keys() - set(_fields(kind)):
            raise TypeError(f"the dataclass {name!r} has no fields {sorted(unknown)}")
        made = object.__new__(kind)
        for own, value in given.items():
            object.__setattr__(made, own, value)  # frozen ones too
        return made


_DECODERS: dict[int, Callable[[_Decoder, memoryview], Any]] = {
    _TUPLE: lambda reader, data: tuple(reader.read(data)),
    _SET: _Decoder.set,
    _FROZENSET: lambda reader, data: frozenset(reader.set(data)),
    _DICT: _Decoder.dict,
    _ENUM: _Decoder.enum,
    _DATACLASS: _Decoder.dataclass,
    _INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    _STR: lambda _, data: str(data, errors="surrogatepass"),
}


def _find_class(name: str) -> type | None:
    """The class of this name in a module that is already here. Nothing is imported, no attribute code is run."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found if isinstance(found, type) else None
