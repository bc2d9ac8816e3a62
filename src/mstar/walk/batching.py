"""How requests join into one call of an op, and part again.

An op declares it once (`@op(batch=ragged("T"))`) and its body is written for the batch; a single request is a batch
of one. Inside such a body a tensor parameter is the joined tensor, a static one is itself, and every other parameter
(states, numbers, objects) is a list with one entry per row: `rows(kv)` says so to a static checker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar, cast

from mstar.errors import BadShape
from mstar.graph.types import TensorType, Type
from mstar.walk.values import concatenate, cut, pad, split, stack

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """A way of joining: its name, and the dimension along which rows differ in length, if they may."""

    mode: str
    dim: str = ""

    def axis(self, type_: Type) -> int | None:
        """Where a value of this type has the dimension, or None."""
        return type_.dims.index(self.dim) if isinstance(type_, TensorType) and self.dim in type_.dims else None


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
    """The shape of a batch: how many rows, each row's length along the joined dimension, and which are not whole.

    An op that declares a parameter of this type is given it by the runtime; a walk does not pass it.
    """

    rows: int = 1
    lengths: tuple[int, ...] = ()
    unfinished: frozenset[int] = frozenset()
    """Rows of an op `chunked` whose call goes on with another piece: what is given for them is not used, except along
    the joined dimension."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each row starts along the joined dimension, and the total."""
        return tuple(accumulate(self.lengths, initial=0))


ONE_ROW = Layout()
"""The default for a parameter of type Layout."""


def rows(batched: T) -> Sequence[T]:
    """The rows of a parameter that is neither a tensor nor static, inside a batched op's body."""
    return cast("Sequence[T]", batched)


def join_arguments(batch: Batch, types: dict[str, Type], columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Each parameter's values, one for each call, as what the op's body takes."""
    joined: dict[str, Any] = {}
    for name, column in columns.items():
        if not isinstance(types[name], TensorType):
            joined[name] = column
        elif (axis := batch.axis(types[name])) is None:
            joined[name] = stack(column)
        else:
            joined[name] = concatenate(column, axis) if batch.mode == "ragged" else pad(column, axis)
    return joined


def split_result(batch: Batch, type_: Type, value: Any, layout: Layout) -> list[Any]:
    """One joined result as one value per call."""
    axis = batch.axis(type_)
    is_ragged = axis is not None and batch.mode == "ragged"
    has, wants = (value.shape[axis], sum(layout.lengths)) if is_ragged else (len(value), layout.rows)
    if has != wants:
        fix = "give one entry for each row, and along the batch's dimension one for each position"
        raise BadShape(f"an op gave {has} entries of {type_} for a batch of {wants}\n  fix: {fix}")
    if axis is None:
        return list(value)
    if is_ragged:
        return split(value, axis, layout.lengths)
    return [cut(row, axis, 0, length) for row, length in zip(value, layout.lengths, strict=True)]
