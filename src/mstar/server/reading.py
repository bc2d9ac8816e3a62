"""What a client sent, as what a model's route takes: numbers, texts, lists, dataclasses and arrays, by annotations.

Nothing is made of anything else: a text is not read as a number, and what is not declared is refused. It reads values
that were decoded before, not bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, cast

import msgspec

from mstar.errors import MstarError
from mstar.graph.types import FLOATS, TensorType
from mstar.server import arrays
from mstar.server.door import Served
from mstar.server.refusals import Refusal
from mstar.server.visit import VALUES, too_many_values
from mstar.walk.types import UnknownHint, read_hint

_PLAIN = {bool: "true or false", str: "a text", bytes: "bytes"}
_SEQUENCES = (list, tuple, Sequence)
_INT64 = 2**63


class FormText(str):
    """A text of a form, where numbers are written as texts too."""

    __slots__ = ()

    def read(self, hint: Any) -> Any:
        """What it stands for where a value of this type is wanted."""
        if hint in (str, Any) or str in typing.get_args(hint):
            return str(self)
        try:
            return msgspec.json.decode(str(self))
        except msgspec.DecodeError:
            return str(self)


def request_of(served: Served, value: Any) -> Any:
    """What a model's route takes, from what a client sent. Raises Refusal."""
    _refuse_crowded(value)
    if served.request is not None:
        return _read(served.request, value, "request")
    walks = served.model.walks()
    if len(walks) != 1:
        what = f"the model `{served.name}` has several walks and no route, so no request can be served"
        raise Refusal(404, "surface_not_served", what)
    walk = next(iter(walks.values()))
    hints = typing.get_type_hints(walk, include_extras=True)
    parameters = list(inspect.signature(walk).parameters.values())[1:]
    needed = {one.name for one in parameters if one.default is one.empty}
    return _fields({one.name: hints[one.name] for one in parameters}, needed, value, "request")


def _refuse_crowded(value: Any) -> None:
    """Refuse more values than can be read while others wait."""
    seen, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        items: Collection[Any] = ()
        if isinstance(one, dict):
            items = cast("dict[Any, Any]", one).values()
        elif isinstance(one, list):
            items = cast("list[Any]", one)
        seen += len(items)
        if seen > VALUES:
            raise too_many_values()
        waiting += items


def _read(hint: Any, value: Any, where: str) -> Any:
    if isinstance(value, FormText):
        value = value.read(hint)
    if typing.get_origin(hint) is Annotated:
        tensor = _tensor_type(hint)
        return _array(tensor, value, where) if tensor else _read(typing.get_args(hint)[0], value, where)
    if hint is Any or hint is object:
        return _untyped(value, where)
    origin: Any = typing.get_origin(hint) or hint
    if origin is typing.Union or origin is types.UnionType:
        return _one_of(typing.get_args(hint), value, where)
    if origin is Literal:
        return _wanted(value in typing.get_args(hint), value, where, f"one of {list(typing.get_args(hint))}")
    if origin in _SEQUENCES:
        return _items(hint, value, where)
    if origin in (dict, Mapping):
        _wanted(isinstance(value, dict), value, where, "an object")
        of = (typing.get_args(hint) or (str, Any))[1]
        return {key: _read(of, item, f"{where}.{key}") for key, item in value.items()}
    return _dataclass(origin, value, where) if dataclasses.is_dataclass(origin) else _scalar(origin, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is None or hint is type(None):
        return _wanted(value is None, value, where, "null")
    if hint is int:
        return _wanted(type(value) is int and -_INT64 <= value < _INT64, value, where, "an integer of 64 bits")
    if hint is float:
        fits = type(value) in (int, float) and isfinite(value)
        return float(_wanted(fits, value, where, "a finite number"))
    if hint in _PLAIN:
        return _wanted(type(value) is hint, value, where, _PLAIN[hint])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = hint.__members__
        return members[_wanted(isinstance(value, str) and value in members, value, where, f"one of {[*members]}")]
    raise Refusal(400, "unsupported_type", f"{where}: a value of type {hint} cannot be sent here", param=where)


def _wanted(fits: bool, value: Any, where: str, what: str) -> Any:
    if not fits:
        raise Refusal(422, "invalid_value", f"{where}: {what} is needed", param=where)
    return value


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    refusals: list[Refusal] = []
    for hint in hints:
        try:
            return _read(hint, value, where)
        except Refusal as refusal:
            refusals.append(refusal)
    raise next((one for one in refusals if one.param != where), refusals[0])  # what fitted best says most


def _items(hint: Any, value: Any, where: str) -> Any:
    _wanted(isinstance(value, list), value, where, "a list")
    of, kind = typing.get_args(hint), typing.get_origin(hint) or hint
    if kind is tuple and of and of[-1] is not Ellipsis:
        _wanted(len(value) == len(of), value, where, f"a list of {len(of)}")
        return tuple(_read(one, item, f"{where}.{i}") for i, (one, item) in enumerate(zip(of, value, strict=True)))
    one = of[0] if of else Any
    read = [_read(one, item, f"{where}.{i}") for i, item in enumerate(value)]
    return tuple(read) if kind is tuple else read


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    own = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    needed = {field.name for field in own if field.default is missing and field.default_factory is missing}
    read = _fields({field.name: hints[field.name] for field in own}, needed, value, where)
    try:
        return kind(**read)
    except (MstarError, ValueError) as error:
        raise Refusal(422, "invalid_value", f"{where}: {error}", param=where) from None


def _fields(hints: Mapping[str, Any], needed: set[str], value: Any, where: str) -> dict[str, Any]:
    _wanted(isinstance(value, dict), value, where, "an object")
    for name in [*(needed - value.keys()), *(value.keys() - hints.keys())]:
        what = f"is missing; {[*hints]} are known" if name in needed else f"is not one of {[*hints]}"
        raise Refusal(422, "invalid_value", f"{where}.{name} {what}", param=f"{where}.{name}")
    return {name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()}


# ---------------------------------------------------------------- arrays
def _tensor_type(hint: Any) -> TensorType | None:
    try:
        found = read_hint(hint).type
    except UnknownHint:
        return None
    return found if isinstance(found, TensorType) else None


def _array(wanted: TensorType, value: Any, where: str) -> Any:
    array = value if arrays.is_array(value) else _made(value, where)
    name = array.dtype.name
    is_kind = name == wanted.dtype or (wanted.dtype == "float" and name in FLOATS)
    is_rank = len(array.shape) == len(wanted.dims)
    if (
        not is_kind
        or not is_rank
        or any(type(a) is int and a != b for a, b in zip(wanted.dims, array.shape, strict=True))
    ):
        what = f"{where}: an array {wanted} is needed, and this is {name}{list(array.shape)}"
        raise Refusal(422, "invalid_value", what, param=where)
    return array


def _untyped(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "shape", "data"}:
            return _made(value, where)
        return {key: _untyped(item, f"{where}.{key}") for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_untyped(item, f"{where}.{i}") for i, item in enumerate(cast("list[Any]", value))]
    if isinstance(value, float):
        _wanted(isfinite(value), value, where, "a finite number")
    return value


def _made(value: Any, where: str) -> Any:
    try:
        return arrays.from_json(cast("Mapping[str, Any]", _wanted(isinstance(value, dict), value, where, "an array")))
    except arrays.BadArray as error:
        raise Refusal(422, "invalid_value", f"{where}: {error}", param=where) from None
