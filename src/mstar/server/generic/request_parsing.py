"""Request parsing by type annotation: converts decoded JSON or msgpack to the request type of a model's route.

Supports scalars, enums, literals, unions, sequences, mappings, dataclasses and typed arrays. Values are not coerced (a
string is not parsed as a number), and fields that the type does not declare are an error. It does not decode bytes.
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
from mstar.wire.frame import MAX_MESSAGE_BYTES

_PLAIN_TYPES = {bool: "a boolean", str: "a string", bytes: "bytes"}
_SEQUENCES = (list, tuple, Sequence)
_INT64 = 2**63
MAX_INLINE_BYTES = MAX_MESSAGE_BYTES - (4 << 20)
"""Maximum bytes of the texts and bytes of a request: they are sent in one message, with everything around them."""
_MAX_SHOWN_CHARS = 64
"""Maximum characters of a value in an error message."""


class FormText(str):
    """Text part of a multipart form, which can hold a string or any other value as JSON."""

    __slots__ = ()

    def parse_as(self, hint: Any) -> Any:
        """Value for a field of this type: the text itself for strings, else the text as JSON if it is valid JSON."""
        if hint in (str, Any) or str in typing.get_args(hint):
            return str(self)
        try:
            return msgspec.json.decode(str(self))
        except msgspec.DecodeError:
            return str(self)


def parse_request(served_model: ServedModel, value: Any) -> Any:
    """Convert a decoded value to the argument of a model's route, or of its only walk. Raises ApiError."""
    _check_size(value)
    if served_model.request_type is not None:
        return _parse(served_model.request_type, value, "request")
    walks = served_model.model.walks()
    if len(walks) != 1:
        message = (
            f"the model `{served_model.name}` has {len(walks)} walks and no route, so it cannot serve requests. "
            "fix: use another model, or define a route"
        )
        raise ApiError(404, "endpoint_not_supported", message)
    walk = next(iter(walks.values()))
    hints = typing.get_type_hints(walk, include_extras=True)
    parameters = list(inspect.signature(walk).parameters.values())[1:]
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    fields = {parameter.name: hints[parameter.name] for parameter in parameters}
    return _parse_fields(fields, required, value, "request")


def _check_size(value: Any) -> None:
    """Reject a value that would block the event loop for too long, or that cannot be sent to another process.

    Arrays have no limit here: they are not part of a message.
    """
    count = inline_bytes = 0
    stack = [value]
    while stack:
        item = stack.pop()
        items: Collection[Any] = ()
        if isinstance(item, dict):
            fields = cast("dict[Any, Any]", item)
            is_array = fields.keys() == {"dtype", "shape", "data"} and isinstance(fields["data"], str | bytes)
            items = [fields["shape"]] if is_array else fields.values()
        elif isinstance(item, list):
            items = cast("list[Any]", item)
        elif isinstance(item, str | bytes):
            inline_bytes += len(item)
        count += len(items)
        if count > MAX_JSON_VALUES:
            raise too_many_values_error()
        if inline_bytes > MAX_INLINE_BYTES:
            message = (
                f"request: the texts and bytes of a request can have {MAX_INLINE_BYTES} bytes in total. "
                "fix: send less, or send large data as arrays"
            )
            raise ApiError(413, "too_large", message, param="request")
        stack += items


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
        value_hint = (typing.get_args(hint) or (str, Any))[1]
        return {key: _parse(value_hint, item, f"{path}.{key}") for key, item in value.items()}
    return (
        _parse_dataclass(origin, value, path)
        if dataclasses.is_dataclass(origin)
        else _parse_scalar(origin, value, path)
    )


def _parse_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is None or hint is type(None):
        return _require(value is None, value, path, "null")
    if hint is int:
        return _require(type(value) is int and -_INT64 <= value < _INT64, value, path, "a 64-bit integer")
    if hint is float:
        fits = type(value) in (int, float) and isfinite(value)
        return float(_require(fits, value, path, "a finite number"))
    if hint in _PLAIN_TYPES:
        return _require(type(value) is hint, value, path, _PLAIN_TYPES[hint])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = hint.__members__
        return members[_require(isinstance(value, str) and value in members, value, path, f"one of {[*members]}")]
    message = f"{path}: a value of type {hint} cannot be sent over HTTP. fix: omit the field if it has a default"
    raise ApiError(400, "unsupported_type", message, param=path)


def _require(is_valid: bool, value: Any, path: str, expected: str) -> Any:
    if not is_valid:
        message = f"{path}: {_describe(value)} is not valid. fix: send {expected}"
        raise ApiError(422, "invalid_value", message, param=path)
    return value


def _describe(value: Any) -> str:
    """Short form of a value for an error message; containers and arrays by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
    return f"a value of type {type(value).__name__}"


def _parse_union(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    errors: list[ApiError] = []
    for hint in hints:
        try:
            return _parse(hint, value, path)
        except ApiError as error:
            errors.append(error)
    raise next((error for error in errors if error.param != path), errors[0])  # the member that matched furthest


def _parse_sequence(hint: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, list), value, path, "a list")
    item_hints, kind = typing.get_args(hint), typing.get_origin(hint) or hint
    if kind is tuple and item_hints and item_hints[-1] is not Ellipsis:
        _require(len(value) == len(item_hints), value, path, f"a list of {len(item_hints)} items")
        pairs = enumerate(zip(item_hints, value, strict=True))
        return tuple(_parse(item_hint, item, f"{path}.{i}") for i, (item_hint, item) in pairs)
    item_hint = item_hints[0] if item_hints else Any
    items = [_parse(item_hint, item, f"{path}.{i}") for i, item in enumerate(value)]
    return tuple(items) if kind is tuple else items


def _parse_dataclass(class_: Any, value: Any, path: str) -> Any:
    hints = typing.get_type_hints(class_, include_extras=True)
    fields = [field for field in dataclasses.fields(class_) if field.init]
    missing = dataclasses.MISSING
    required = {field.name for field in fields if field.default is missing and field.default_factory is missing}
    arguments = _parse_fields({field.name: hints[field.name] for field in fields}, required, value, path)
    try:
        return class_(**arguments)
    except (MstarError, ValueError) as error:
        raise ApiError(422, "invalid_value", f"{path}: {error}", param=path) from None


def _parse_fields(hints: Mapping[str, Any], required: set[str], value: Any, path: str) -> dict[str, Any]:
    _require(isinstance(value, dict), value, path, "an object")
    for name in [*(required - value.keys()), *(value.keys() - hints.keys())]:
        reason, fix = ("is missing", "add it") if name in required else ("is unknown", "remove or rename it")
        message = f"{path}.{name} {reason}; {[*hints]} are the fields. fix: {fix}"
        raise ApiError(422, "invalid_value", message, param=f"{path}.{name}")
    return {name: _parse(hints[name], item, f"{path}.{name}") for name, item in value.items()}


# ---------------------------------------------------------------- arrays
def _tensor_type(hint: Any) -> TensorType | None:
    try:
        graph_type = read_hint(hint).type
    except UnknownHint:
        return None
    return graph_type if isinstance(graph_type, TensorType) else None


def _parse_array(tensor_type: TensorType, value: Any, path: str) -> Any:
    array = value if arrays.is_array(value) else _array_from_json(value, path)
    name = array.dtype.name
    is_kind = name == tensor_type.dtype or (tensor_type.dtype == "float" and name in FLOATS)
    is_rank = len(array.shape) == len(tensor_type.dims)
    if (
        not is_kind
        or not is_rank
        or any(type(dim) is int and dim != size for dim, size in zip(tensor_type.dims, array.shape, strict=True))
    ):
        message = f"{path}: the array is {name}{list(array.shape)}. fix: send {tensor_type}"
        raise ApiError(422, "invalid_value", message, param=path)
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
