"""What a value in a walk is: a tensor, a plain object, a list of them, or a state.

Types are data for the tracer, the checker and the planner. They hold no values and know no tensor library.
"""

from __future__ import annotations

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
