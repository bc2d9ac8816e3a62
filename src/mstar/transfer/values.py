"""Safe serialization of model values: msgpack with extension types, without pickle.

Plain values, lists and dicts are msgpack. Tuples, sets, dataclasses, enums, large integers and arrays are extension
types. A value has the same bytes in every process, except for arrays placed out of band by the caller.

A dataclass is restored field by field without running its `__init__`. Decoding imports no module and runs no code that
the sender chose.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec
from msgspec.msgpack import Ext, decode, encode

from mstar.errors import NotSerializable, ReadFailed
from mstar.transfer.arrays import PlaceArray, array_packer, unpack_array

# msgpack extension types
_TUPLE = 0
_SET = 1
_FROZENSET = 2
_DICT = 3
_DATACLASS = 4
_ENUM = 5
_INT = 6
_STR = 7
_ARRAY = 8

_EMPTY_LIST = encode([])
_EMPTY_TUPLE = Ext(_TUPLE, _EMPTY_LIST)
_MSGPACK_TYPES = frozenset({type(None), bool, float, bytes})
"""Types whose values are encoded as they are."""
_NAMESPACES = (ModuleType, type)
_SCALAR_CODES = frozenset(
    {*range(0x80), *range(0xA0, 0xC7), *range(0xCA, 0xD4), *range(0xD9, 0xDC), *range(0xE0, 0x100)}
)
"""First bytes of msgpack values that contain no other value: numbers, strings, bytes, None and booleans."""


# ---------------------------------------------------------------- packing
def pack(value: Any, place: PlaceArray | None = None) -> bytes:
    """Encode a value; `place` stores large arrays out of band. Raises NotSerializable."""
    try:
        return encode(_to_msgpack(value, place))
    except RecursionError:
        fix = "send a value that does not contain itself"
        raise NotSerializable(
            f"cannot send a {type(value).__name__} to another process: it is nested too deeply\n  fix: {fix}"
        ) from None


def _to_msgpack(value: Any, place: PlaceArray | None) -> Any:
    """Convert a value to msgpack types."""
    kind = type(value)
    return value if kind in _MSGPACK_TYPES else _packer(kind)(value, place)


@functools.lru_cache(1024)
def _packer(kind: type) -> Callable[[Any, PlaceArray | None], Any]:
    """Packer for values of a type."""
    if kind in _PACKERS:
        return _PACKERS[kind]
    if (array := array_packer(kind)) is not None:
        return lambda value, place: Ext(_ARRAY, array(value, place))
    if issubclass(kind, enum.Enum):
        return functools.partial(_enum, _class_path(kind))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_dataclass, _class_path(kind), _fields(kind), _reader(_fields(kind)))
    fix = "send plain values, lists, dicts, dataclasses, enums or arrays"
    raise NotSerializable(f"cannot send a {kind.__module__}.{kind.__qualname__} to another process\n  fix: {fix}")


def _int(value: int, _: PlaceArray | None) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _str(value: str, _: PlaceArray | None) -> Any:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate: valid in Python, not in UTF-8
            return Ext(_STR, value.encode(errors="surrogatepass"))
    return value


def _list(value: list[Any], place: PlaceArray | None) -> Any:
    if set(map(type, value)) == {int} and min(value) >= -(1 << 63) and max(value) < 1 << 64:
        return value  # fast path for token ids
    return [_to_msgpack(item, place) for item in value]


def _tuple(value: tuple[Any, ...], place: PlaceArray | None) -> Any:
    if not value:
        return _EMPTY_TUPLE
    return Ext(_TUPLE, encode([_to_msgpack(item, place) for item in value]))


def _set(code: int, value: set[Any], place: PlaceArray | None) -> Any:
    # Sorted, because the order of a set differs by process.
    return Ext(code, encode(sorted(encode(_to_msgpack(item, place)) for item in value)))


def _dict(value: dict[Any, Any], place: PlaceArray | None) -> Any:
    if all(type(key) is str and key.isascii() for key in value):
        return {key: _to_msgpack(item, place) for key, item in value.items()}
    return Ext(_DICT, encode([_to_msgpack(each, place) for pair in value.items() for each in pair]))


def _enum(name: str, value: enum.Enum, place: PlaceArray | None) -> Any:
    member = value.value if isinstance(value, enum.Flag) else value.name  # combined flags have no name
    return Ext(_ENUM, encode([name, _to_msgpack(member, place)]))


def _dataclass(
    name: str, fields: Sequence[str], read: Callable[[Any], Sequence[Any]], value: Any, place: PlaceArray | None
) -> Any:
    try:
        items = read(value)
    except AttributeError:  # some are not set
        fields = [field for field in fields if hasattr(value, field)]
        items = [getattr(value, field) for field in fields]
    content = dict[str, Any]()
    for field, item in zip(fields, items, strict=True):
        kind = type(item)
        content[field] = item if kind in _MSGPACK_TYPES else _packer(kind)(item, place)
    return Ext(_DATACLASS, encode([name, content]))


def _reader(fields: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Reads all fields of an object in one call."""
    if len(fields) > 1:
        return operator.attrgetter(*fields)
    return lambda value: [getattr(value, field) for field in fields]


_PACKERS: dict[type, Callable[[Any, PlaceArray | None], Any]] = {
    int: _int,
    str: _str,
    list: _list,
    tuple: _tuple,
    set: functools.partial(_set, _SET),
    frozenset: functools.partial(_set, _FROZENSET),
    dict: _dict,
}


@functools.lru_cache(1024)
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.lru_cache(1024)
def _field_set(kind: Any) -> frozenset[str] | None:
    """Names of the fields of a dataclass; None for another class."""
    return frozenset(_fields(kind)) if dataclasses.is_dataclass(kind) else None


def _class_path(kind: type) -> str:
    """Import path of a class. Raises NotSerializable if another process could not find it."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or _find_class(name) is not kind:
        fix = "define it at the top of a module that both processes import"
        raise NotSerializable(f"cannot send {name} to another process: the class is not importable there\n  fix: {fix}")
    if not issubclass(kind, enum.Enum):
        try:
            object.__new__(kind)
        except TypeError as error:  # it also subclasses list, Exception or the like
            fix = "send a dataclass without a builtin base class"
            raise NotSerializable(
                f"cannot send a {name} to another process: it has more state than its fields: {error}\n  fix: {fix}"
            ) from None
    return name


# ---------------------------------------------------------------- unpacking
_DECODE_ERRORS = (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError)
_DECODE_ERRORS += (ArithmeticError, RuntimeError, struct.error)
"""Exceptions that decoding invalid bytes can raise."""


def unpack(data: bytes | memoryview, placed: Sequence[bytearray | memoryview] = (), *, numpy_only: bool = False) -> Any:
    """Decode a value; `placed` are the bytes of its out-of-band arrays. Raises ReadFailed.

    With `numpy_only` tensors are decoded as numpy arrays.
    """
    try:
        if data[0] in _SCALAR_CODES:
            return decode(data)
        return _Decoder(placed, numpy_only=numpy_only).read(data)
    except _DECODE_ERRORS as error:
        fix = "run the same version of mstar and of the models in all processes"
        raise ReadFailed(f"cannot decode {len(data)} bytes: {error}\n  fix: {fix}") from error


class _Decoder:
    """Decodes extension types."""

    def __init__(self, placed: Sequence[bytearray | memoryview], *, numpy_only: bool) -> None:
        self._placed = placed
        self._numpy_only = numpy_only

    def read(self, data: bytes | memoryview) -> Any:
        return decode(data, ext_hook=self._extension)

    def _extension(self, code: int, data: memoryview) -> Any:
        if code == _TUPLE:
            return () if data == _EMPTY_LIST else tuple(self.read(data))
        if code == _ARRAY:
            return unpack_array(data, self._placed, numpy_only=self._numpy_only)
        return _DECODERS[code](self, data)

    def set(self, data: memoryview) -> set[Any]:
        return {self.read(item) for item in self.read(data)}

    def dict(self, data: memoryview) -> dict[Any, Any]:
        items = iter(self.read(data))
        return dict(zip(items, items, strict=True))

    def enum(self, data: memoryview) -> enum.Enum:
        name, member = self.read(data)
        kind = _find_class(name)
        if kind is None or not issubclass(kind, enum.Enum):
            raise TypeError(f"this process has no enum {name!r}")
        return kind(member) if issubclass(kind, enum.Flag) else kind.__members__[member]

    def dataclass(self, data: memoryview) -> Any:
        name, content = self.read(data)
        kind = _find_class(name)
        fields = None if kind is None else _field_set(kind)
        if kind is None or fields is None:
            raise TypeError(f"this process has no dataclass {name!r}")
        if not content.keys() <= fields:
            raise TypeError(f"the dataclass {name!r} has no fields {sorted(content.keys() - fields)}")
        instance, set_field = object.__new__(kind), object.__setattr__  # works for frozen dataclasses
        for field, value in content.items():
            set_field(instance, field, value)
        return instance


_DECODERS: dict[int, Callable[[_Decoder, memoryview], Any]] = {
    _SET: _Decoder.set,
    _FROZENSET: lambda reader, data: frozenset(reader.set(data)),
    _DICT: _Decoder.dict,
    _ENUM: _Decoder.enum,
    _DATACLASS: _Decoder.dataclass,
    _INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    _STR: lambda _, data: str(data, errors="surrogatepass"),
}


def _find_class(name: str) -> type | None:
    """Find a class by its path in an imported module. Imports nothing and runs no attribute code."""
    module, path = _split_path(name)
    result: Any = sys.modules.get(module)
    for part in path:
        result = vars(result).get(part) if isinstance(result, _NAMESPACES) else None
    return result if isinstance(result, type) else None


@functools.lru_cache(1024)
def _split_path(name: str) -> tuple[str, Sequence[str]]:
    """Module, and the names from it to the class."""
    module, _, path = name.partition(":")
    return module, path.split(".")
