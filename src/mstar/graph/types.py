"""What a value in a walk is: a tensor, a plain object, a list of them, or a state.

Types are data for the tracer, the checker and the planner. They hold no values and know no tensor library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Dim = int | str
"""A known size, or the name of one that is only known per request."""

FLOATS = frozenset({"float", "float16", "bfloat16", "float32", "float64"})
"""The float dtypes; `float` stands for any of them."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array with a dtype and named or fixed dimensions."""

    dtype: str
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """A plain Python value that ops receive as it is: int, float, bool, str, or a request's own dataclass."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListType:
    """Values of one type in order; how many is only known per request."""

    item: Type

    def __str__(self) -> str:
        return f"list[{self.item}]"


@dataclass(frozen=True, slots=True)
class StateType:
    """Memory that a request keeps inside a component."""

    kind: str

    def __str__(self) -> str:
        return f"state {self.kind}"


Type = TensorType | ObjectType | ListType | StateType

INT = ObjectType("int")
BOOL = ObjectType("bool")


def is_flag(type_: Type) -> bool:
    """Whether a value of this type can end a loop or choose an arm."""
    return type_ == BOOL or (isinstance(type_, TensorType) and type_.dtype == "bool" and type_.dims in ((), (1,)))


def item_of(type_: Type) -> Type | None:
    """The type of one element along the first axis, or None where there is no such axis."""
    if isinstance(type_, ListType):
        return type_.item
    if isinstance(type_, TensorType) and type_.dims:
        return TensorType(type_.dtype, type_.dims[1:])
    return None


def stacked_type(item: Type, size: Dim) -> Type:
    """The type of `size` such values joined in order: tensors gain an axis, anything else becomes a list."""
    return TensorType(item.dtype, (size, *item.dims)) if isinstance(item, TensorType) else ListType(item)


def accepts(wide: Type, narrow: Type) -> bool:
    """Whether a value of the second type may stand where the first is wanted.

    They are equal, but for sizes that only an op knows: `K#3` may be any `K` that the same kind of op gave, `K#1` too.
    """
    match wide, narrow:
        case TensorType(), TensorType():
            sizes = list(zip(wide.dims, narrow.dims, strict=False))
            is_alike = wide.dtype == narrow.dtype and len(wide.dims) == len(narrow.dims)
            return is_alike and all(a == b or _own_name(a) == _own_name(b) != "" for a, b in sizes)
        case ListType(), ListType():
            return accepts(wide.item, narrow.item)
        case _:
            return wide == narrow


def merged_type(one: Type, other: Type, fresh: Callable[[str], str]) -> Type | None:
    """The type that accepts both, or None. Sizes that only ops know and that differ become one that is neither."""
    if one == other or not accepts(one, other):
        return one if one == other else None
    if isinstance(one, ListType) and isinstance(other, ListType):
        item = merged_type(one.item, other.item, fresh)
        return ListType(item) if item is not None else None
    assert isinstance(one, TensorType)
    assert isinstance(other, TensorType)
    sizes = zip(one.dims, other.dims, strict=True)
    return TensorType(one.dtype, tuple(a if a == b else fresh(_own_name(a)) for a, b in sizes))


def _own_name(dim: Dim) -> str:
    """What an op calls a size that only it knows: `K` of `K#1`; nothing for any other size."""
    name, mark, _ = str(dim).partition("#")
    return name if mark else ""
