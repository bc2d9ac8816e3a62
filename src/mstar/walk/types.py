"""Type annotations of ops and walks: `Int64[Tensor, "T"]`, `View[KV]`, `Static[str]` (in the style of jaxtyping).

A static type checker sees the first part, a plain tensor; the string names the dimensions for the tracer. At run time
they are `typing.Annotated`, so no tensor library is imported.
"""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from mstar.graph.types import FLOATS, ListType, ObjectType, StateType, TensorType, Type
from mstar.walk.states import State

__all__ = [
    "BFloat16",
    "Bool",
    "Float",
    "Float16",
    "Float32",
    "Hint",
    "Int32",
    "Int64",
    "Static",
    "Tensor",
    "UInt8",
    "UnknownHint",
    "View",
    "fields_of",
    "fits",
    "read_hint",
    "read_return",
]

T = TypeVar("T")

_VIEW = "mstar: only read"
_STATIC = "mstar: part of the batch key"

View = Annotated[T, _VIEW]
"""A state that an op reads but does not extend, so that such calls can run concurrently."""

Static = Annotated[T, _STATIC]
"""An argument fixed when the walk is traced. Calls share a batch only when their static arguments are equal."""


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: Any) -> Any:
        array, dims, *_ = (*cast("tuple[Any, ...]", item), None) if isinstance(item, tuple) else (item, None)
        parts = dims.split() if isinstance(dims, str) else ["?"]
        if not all(part.isdigit() or part.isidentifier() for part in parts):
            got = f", not {dims!r}" if dims is not None else ""
            raise TypeError(f'tensor dimensions are a string separated by spaces, as in Int64[Tensor, "T 64"]{got}')
        return Annotated[array, TensorType(self.name, tuple(int(part) if part.isdigit() else part for part in parts))]


if TYPE_CHECKING:
    from typing import Annotated as BFloat16
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Float16
    from typing import Annotated as Float32
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as UInt8

    from torch import Tensor as Tensor
else:

    class Tensor:
        """Placeholder for torch.Tensor, so that a model file imports without torch."""

    BFloat16, Bool, Float, Float16, Float32 = map(_Dtype, ("bfloat16", "bool", "float", "float16", "float32"))
    Int32, Int64, UInt8 = map(_Dtype, ("int32", "int64", "uint8"))


@dataclass(frozen=True, slots=True)
class Hint:
    """A parsed annotation: the graph type, the Python class, and its markers."""

    type: Type
    python: Any
    is_view: bool = False
    is_static: bool = False


class UnknownHint(TypeError):
    """An annotation that is not supported for values of a walk."""


def read_hint(hint: Any) -> Hint:
    """Parse an annotation. Raises UnknownHint with the reason."""
    marks: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        marks = tuple(rest)
    for mark in marks:
        if isinstance(mark, TensorType):
            return Hint(mark, hint)
    return Hint(_plain(hint), hint, _VIEW in marks, _STATIC in marks)


def _plain(hint: Any) -> Type:
    if typing.get_origin(hint) is Annotated:
        raise UnknownHint(f"a tensor ({read_hint(hint).type}) cannot be optional or part of a union")
    if isinstance(hint, type) and issubclass(hint, State):
        return StateType(hint.__name__)
    if typing.get_origin(hint) is list:
        return ListType(read_hint(typing.get_args(hint)[0]).type)
    if isinstance(hint, type) and hint.__name__ == "Tensor":
        raise UnknownHint('a bare Tensor has no dtype and no dimensions; write for example Int64[Tensor, "T"]')
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return ObjectType(hint.__qualname__)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return ObjectType(" | ".join(str(_plain(part)) for part in typing.get_args(hint)))
    raise UnknownHint(f"{str(hint).replace(Tensor.__module__ + '.', '')} is not a type of walk values")


def read_return(hint: Any) -> tuple[tuple[Hint, ...], bool]:
    """Parse the return annotation of an op: its hints, and whether they are a tuple."""
    if hint is None or hint is type(None):
        return (), False
    if typing.get_origin(hint) is tuple:
        return tuple(map(read_hint, typing.get_args(hint))), True
    return (read_hint(hint),), False


def fits(expected: Type, actual: Type) -> bool:
    """Whether a value can be passed where `expected` is declared. Dimensions are not compared."""
    match expected, actual:
        case TensorType(), TensorType():
            return expected.dtype == actual.dtype or (expected.dtype == "float" and actual.dtype in FLOATS)
        case ListType(), ListType():
            return fits(expected.item, actual.item)
        case ObjectType(), ObjectType():
            names = expected.name.split(" | ")
            is_int_as_float = (expected.name, actual.name) == ("float", "int")
            return actual.name in names or expected.name == actual.name or is_int_as_float
        case _:
            return expected == actual


@functools.cache
def fields_of(cls: Any) -> dict[str, Hint]:
    """Fields of a dataclass whose types a walk supports."""
    fields: dict[str, Hint] = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        try:
            fields[name] = read_hint(hint)
        except UnknownHint:
            continue
    return fields
