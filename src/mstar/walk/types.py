"""How a model author writes types: `Int64[Tensor, "T"]`, `View[KV]`, `Static[str]`.

The first part is what a static checker sees (a plain tensor), the string names the dimensions for the tracer. To
Python they are `typing.Annotated`, so nothing here needs a tensor library.
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
"""A state that an op reads and does not extend: such calls may run side by side."""

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
            raise TypeError(f'a tensor is written Int64[Tensor, "T 64"], its dimensions between spaces{got}')
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
        """Stands for the tensor library's class, so that a model file imports without it."""

    BFloat16, Bool, Float, Float16, Float32 = map(_Dtype, ("bfloat16", "bool", "float", "float16", "float32"))
    Int32, Int64, UInt8 = map(_Dtype, ("int32", "int64", "uint8"))


@dataclass(frozen=True, slots=True)
class Hint:
    """An annotation, read: the graph's type, the Python class behind it, and how an op uses it."""

    type: Type
    python: Any
    is_view: bool = False
    is_static: bool = False


class UnknownHint(TypeError):
    """An annotation that no walk value can have."""


def read_hint(hint: Any) -> Hint:
    """What an annotation says. Raises UnknownHint with the reason."""
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
        raise UnknownHint(f"a tensor, {read_hint(hint).type}, is always there; it cannot be one of several types")
    if isinstance(hint, type) and issubclass(hint, State):
        return StateType(hint.__name__)
    if typing.get_origin(hint) is list:
        return ListType(read_hint(typing.get_args(hint)[0]).type)
    if isinstance(hint, type) and hint.__name__ == "Tensor":
        raise UnknownHint('a bare Tensor says neither its dtype nor its dimensions, as Int64[Tensor, "T"] does')
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return ObjectType(hint.__qualname__)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return ObjectType(" | ".join(str(_plain(part)) for part in typing.get_args(hint)))
    raise UnknownHint(f"{str(hint).replace(Tensor.__module__ + '.', '')} is not a type that a walk can carry")


def read_return(hint: Any) -> tuple[tuple[Hint, ...], bool]:
    """What an op gives: its hints, and whether they come as a tuple."""
    if hint is None or hint is type(None):
        return (), False
    if typing.get_origin(hint) is tuple:
        return tuple(map(read_hint, typing.get_args(hint))), True
    return (read_hint(hint),), False


def fits(want: Type, got: Type) -> bool:
    """Whether a value may stand where `want` is declared, leaving dimensions aside."""
    match want, got:
        case TensorType(), TensorType():
            return want.dtype == got.dtype or (want.dtype == "float" and got.dtype in FLOATS)
        case ListType(), ListType():
            return fits(want.item, got.item)
        case ObjectType(), ObjectType():
            return (
                got.name in want.name.split(" | ") or want.name == got.name or (want.name, got.name) == ("float", "int")
            )
        case _:
            return want == got


@functools.cache
def fields_of(cls: Any) -> dict[str, Hint]:
    """The typed fields of a request's dataclass, as far as a walk can carry them."""
    found: dict[str, Hint] = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        try:
            found[name] = read_hint(hint)
        except UnknownHint:
            continue
    return found
