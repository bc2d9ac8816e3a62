"""Types of walk values: tensors with named dimensions, plain objects, lists and states.

The tracer, the checker and the planner use them. They import no tensor library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Dim = int | str
"""A fixed size, or the name of a size that is known only at run time."""

FLOATS = frozenset({"float", "float16", "bfloat16", "float32", "float64"})
"""Float dtypes; `float` is any of them."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array with a dtype and named or fixed dimensions."""

    dtype: str
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """A plain Python value that is passed to ops unchanged: int, float, bool, str, or a dataclass of a request."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListType:
    """List of values of one type, of a length that is known only at run time."""

    item: Type

    def __str__(self) -> str:
        return f"list[{self.item}]"


@dataclass(frozen=True, slots=True)
class StateType:
    """Per-request memory inside a component, such as a KV cache."""

    kind: str

    def __str__(self) -> str:
        return f"state {self.kind}"


Type = TensorType | ObjectType | ListType | StateType

INT = ObjectType("int")
BOOL = ObjectType("bool")


def is_flag(type_: Type) -> bool:
    """Whether a value of this type can be the flag of `stop_when` or `choose`."""
    return type_ == BOOL or (isinstance(type_, TensorType) and type_.dtype == "bool" and type_.dims in ((), (1,)))


def item_of(type_: Type) -> Type | None:
    """The type of one element along the first axis, or None if there is no first axis."""
    if isinstance(type_, ListType):
        return type_.item
    if isinstance(type_, TensorType) and type_.dims:
        return TensorType(type_.dtype, type_.dims[1:])
    return None


def stacked_type(item: Type, size: Dim) -> Type:
    """The type of `size` stacked values: a tensor with one more axis, or a list."""
    return TensorType(item.dtype, (size, *item.dims)) if isinstance(item, TensorType) else ListType(item)


def accepts(wide: Type, narrow: Type) -> bool:
    """Whether a value of the second type can be used where the first is expected.

    The types must be equal, except for sizes that an op determines at run time: `K#3` accepts `K#1`.
    """
    match wide, narrow:
        case TensorType(), TensorType():
            sizes = list(zip(wide.dims, narrow.dims, strict=False))
            is_same_rank = wide.dtype == narrow.dtype and len(wide.dims) == len(narrow.dims)
            return is_same_rank and all(a == b or _own_name(a) == _own_name(b) != "" for a, b in sizes)
        case ListType(), ListType():
            return accepts(wide.item, narrow.item)
        case _:
            return wide == narrow


def merged_type(one: Type, other: Type, fresh: Callable[[str], str]) -> Type | None:
    """The type that accepts both, or None. Run-time sizes that differ become a new size."""
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
    """The op's name of a run-time size: `K` of `K#1`; empty for any other size."""
    name, mark, _ = str(dim).partition("#")
    return name if mark else ""
