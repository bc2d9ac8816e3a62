"""How requests join into one call of an op, and part again.

An op declares it once (`@op(batch=ragged("T"))`) and its body is written for the batch; a single request is a batch
of one. Inside such a body a tensor parameter is the joined tensor, a static one is itself, and every other parameter
(states, numbers, objects) is a list with one entry per row: `rows(kv)` says so to a static checker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mstar.graph.types import TensorType, Type
from mstar.walk.values import concatenate, cut, pad, stack

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """A way of joining: its name, and the dimension along which rows differ in length, if they may."""

    how: str
    dim: str = ""


alone = Batch("alone")
"""One request at a time; the body is written for one."""
stacked = Batch("stacked")
"""Equal shapes; tensors gain a leading dimension."""


def ragged(dim: str) -> Batch:
    """Tensors with this dimension are concatenated along it; the others are stacked."""
    return Batch("ragged", dim)


def padded(dim: str) -> Batch:
    """Tensors with this dimension are filled with zeros to the longest row; then all are stacked."""
    return Batch("padded", dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a batch: how many rows, and each row's length along the joined dimension.

    An op that declares a parameter of this type is given it by the runtime; a walk does not pass it.
    """

    rows: int = 1
    lengths: tuple[int, ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each row starts along the joined dimension, and the total."""
        total = [0]
        for length in self.lengths:
            total.append(total[-1] + length)
        return tuple(total)


ONE_ROW = Layout()
"""The default for a parameter of type Layout."""


def rows(batched: T) -> Sequence[T]:
    """The rows of a parameter that is neither a tensor nor static, inside a batched op's body."""
    return cast("Sequence[T]", batched)


def lengths_of(batch: Batch, types: dict[str, Type], columns: dict[str, list[Any]]) -> tuple[int, ...]:
    """Each call's size along the batch's dimension."""
    for name, column in columns.items():
        type_ = types[name]
        if isinstance(type_, TensorType) and batch.dim in type_.dims:
            axis = type_.dims.index(batch.dim)
            return tuple(value.shape[axis] for value in column)
    return ()


def join(batch: Batch, types: dict[str, Type], columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Each parameter's values, one for each call, as what the op's body takes."""
    joined: dict[str, Any] = {}
    for name, column in columns.items():
        type_ = types[name]
        if not isinstance(type_, TensorType):
            joined[name] = column
        elif batch.dim in type_.dims:
            axis = type_.dims.index(batch.dim)
            joined[name] = concatenate(column, axis) if batch.how == "ragged" else pad(column, axis)
        else:
            joined[name] = stack(column)
    return joined


def part(batch: Batch, type_: Type, value: Any, layout: Layout) -> list[Any]:
    """One joined result as one value per call."""
    if not isinstance(type_, TensorType) or batch.dim not in type_.dims:
        return [value[row] for row in range(layout.rows)]
    axis = type_.dims.index(batch.dim)
    if batch.how == "padded":
        return [cut(value[row], axis, 0, length) for row, length in enumerate(layout.lengths)]
    offsets = layout.offsets
    return [cut(value, axis, offsets[row], offsets[row + 1]) for row in range(layout.rows)]
