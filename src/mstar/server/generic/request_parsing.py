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
from mstar.server.errors import ApiError
from mstar.server.http_exchange import MAX_JSON_VALUES, too_many_values_error
from mstar.server.state import ServedModel
from mstar.walk.types import UnknownHint, read_hint

_PLAIN_TYPES = {bool: "true or false", str: "a text", bytes: "bytes"}
_SEQUENCES = (list, tuple, Sequence)
_INT64 = 2**63


class FormText(str):
    """A text of a form, where numbers are written as texts too."""

    __slots__ = ()

    def parse_as(self, hint: Any) -> Any:
        """What it stands for where a value of this type is wanted."""
        if hint in (str, Any) or str in typing.get_args(hint):
            return str(self)
        try:
            return msgspec.json.decode(str(self))
        except msgspec.DecodeError:
            return str(self)


def parse_request(served_model: ServedModel, value: Any) -> Any:
    """What a model's route takes, from what a client sent. Raises Refusal."""
    _check_value_count(value)
    if served_model.request_type is not None:
        return _parse(served_model.request_type, value, "request")
    walks = served_model.model.walks()
    if len(walks) != 1:
        what = f"the model `{served_model.name}` has several walks and no route, so no request can be served"
        raise ApiError(404, "endpoint_not_supported", what)
    walk = next(iter(walks.values()))
    hints = typing.get_type_hints(walk, include_extras=True)
    parameters = list(inspect.signature(walk).parameters.values())[1:]
    needed = {one.name for one in parameters if one.default is one.empty}
    return _parse_fields({one.name: hints[one.name] for one in parameters}, needed, value, "request")


def _check_value_count(value: Any) -> None:
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
        if seen > MAX_JSON_VALUES:
            raise too_many_values_error()
        waiting += items


def _parse(hint: Any, value: Any, path: str) -> Any:
    if isinstance(value, FormText):
        value = value.parse_as(hint)
    if typing.get_origin(hint) is Annotated:
        tensor = _tensor_type(hint)
        return _parse_array(tensor, value, path) if tensor else _parse(typing.get_args(hint)[0], value, path)
    if hint is Any or hint is object:
        return _parse_untyped(value, path)
    origin: Any = typing.get_origin(hint) or hint
    if origin is typing.Union or origin is types.UnionType:
        return _parse_union(typing.get_args(hint), value, path)
    if origin is Literal:
        return _require(value in typing.get_args(hint), value, path, f"one of {list(typing.get_args(hint))}")
    if origin in _SEQUENCES:
        return _parse_sequence(hint, value, path)
    if origin in (dict, Mapping):
        _require(isinstance(value, dict), value, path, "an object")
        of = (typing.get_args(hint) or (str, Any))[1]
        return {key: _parse(of, item, f"{path}.{key}") for key, item in value.items()}
    return (
        _parse_dataclass(origin, value, path)
        if dataclasses.is_dataclass(origin)
        else _parse_scalar(origin, value, path)
    )


def _parse_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is None or hint is type(None):
        return _require(value is None, value, path, "null")
    if hint is int:
        return _require(type(value) is int and -_INT64 <= value < _INT64, value, path, "an integer of 64 bits")
    if hint is float:
        fits = type(value) in (int, float) and isfinite(value)
        return float(_require(fits, value, path, "a finite number"))
    if hint in _PLAIN_TYPES:
        return _require(type(value) is hint, value, path, _PLAIN_TYPES[hint])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = hint.__members__
        return members[_require(isinstance(value, str) and value in members, value, path, f"one of {[*members]}")]
    raise ApiError(400, "unsupported_type", f"{path}: a value of type {hint} cannot be sent here", param=path)


def _require(is_valid: bool, value: Any, path: str, expected: str) -> Any:
    if not is_valid:
        raise ApiError(422, "invalid_value", f"{path}: {expected} is needed", param=path)
    return value


def _parse_union(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    refusals: list[ApiError] = []
    for hint in hints:
        try:
            return _parse(hint, value, path)
        except ApiError as refusal:
            refusals.append(refusal)
    raise next((one for one in refusals if one.param != path), refusals[0])  # what fitted best says most


def _parse_sequence(hint: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, list), value, path, "a list")
    of, kind = typing.get_args(hint), typing.get_origin(hint) or hint
    if kind is tuple and of and of[-1] is not Ellipsis:
        _require(len(value) == len(of), value, path, f"a list of {len(of)}")
        return tuple(_parse(one, item, f"{path}.{i}") for i, (one, item) in enumerate(zip(of, value, strict=True)))
    one = of[0] if of else Any
    read = [_parse(one, item, f"{path}.{i}") for i, item in enumerate(value)]
    return tuple(read) if kind is tuple else read


def _parse_dataclass(class_: Any, value: Any, path: str) -> Any:
    hints = typing.get_type_hints(class_, include_extras=True)
    own = [field for field in dataclasses.fields(class_) if field.init]
    missing = dataclasses.MISSING
    needed = {field.name for field in own if field.default is missing and field.default_factory is missing}
    read = _parse_fields({field.name: hints[field.name] for field in own}, needed, value, path)
    try:
        return class_(**read)
    except (MstarError, ValueError) as error:
        raise ApiError(422, "invalid_value", f"{path}: {error}", param=path) from None


def _parse_fields(hints: Mapping[str, Any], required: set[str], value: Any, path: str) -> dict[str, Any]:
    _require(isinstance(value, dict), value, path, "an object")
    for name in [*(required - value.keys()), *(value.keys() - hints.keys())]:
        what = f"is missing; {[*hints]} are known" if name in required else f"is not one of {[*hints]}"
        raise ApiError(422, "invalid_value", f"{path}.{name} {what}", param=f"{path}.{name}")
    return {name: _parse(hints[name], item, f"{path}.{name}") for name, item in value.items()}


# ---------------------------------------------------------------- arrays
def _tensor_type(hint: Any) -> TensorType | None:
    try:
        found = read_hint(hint).type
    except UnknownHint:
        return None
    return found if isinstance(found, TensorType) else None


def _parse_array(tensor_type: TensorType, value: Any, path: str) -> Any:
    array = value if arrays.is_array(value) else _array_from_json(value, path)
    name = array.dtype.name
    is_kind = name == tensor_type.dtype or (tensor_type.dtype == "float" and name in FLOATS)
    is_rank = len(array.shape) == len(tensor_type.dims)
    if (
        not is_kind
        or not is_rank
        or any(type(a) is int and a != b for a, b in zip(tensor_type.dims, array.shape, strict=True))
    ):
        what = f"{path}: an array {tensor_type} is needed, and this is {name}{list(array.shape)}"
        raise ApiError(422, "invalid_value", what, param=path)
    return array


def _parse_untyped(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "shape", "data"}:
            return _array_from_json(value, path)
        return {key: _parse_untyped(item, f"{path}.{key}") for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_parse_untyped(item, f"{path}.{i}") for i, item in enumerate(cast("list[Any]", value))]
    if isinstance(value, float):
        _require(isfinite(value), value, path, "a finite number")
    return value


def _array_from_json(value: Any, path: str) -> Any:
    try:
        return arrays.from_json(cast("Mapping[str, Any]", _require(isinstance(value, dict), value, path, "an array")))
    except arrays.BadArray as error:
        raise ApiError(422, "invalid_value", f"{path}: {error}", param=path) from None
