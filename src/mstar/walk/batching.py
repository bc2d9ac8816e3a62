"""Batch layouts of ops: stacked, ragged (concatenated) or padded; joining calls into a batch and splitting its results.

An op declares its layout (`@op(batch=ragged("T"))`) and its body is written for the batch; a single request is a batch
of one. Inside such a body a tensor parameter is the joined tensor, a static parameter is itself, and every other
parameter (states, numbers, objects) is a list with one entry per row. `rows(kv)` gives that list its static type.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar, cast

from mstar.errors import BadShape, RowsFailed
from mstar.graph.types import TensorType, Type
from mstar.walk.values import concatenate, cut, pad, split, stack

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch layout: its mode, and the dimension along which rows can differ in length."""

    mode: str
    dim: str = ""

    def axis(self, type_: Type) -> int | None:
        """Axis of the batch's dimension in a value of this type, or None."""
        return type_.dims.index(self.dim) if isinstance(type_, TensorType) and self.dim in type_.dims else None


alone = Batch("alone")
"""No batching: the body takes one request."""
stacked = Batch("stacked")
"""Tensors of equal shape are stacked along a new first dimension."""


def ragged(dim: str) -> Batch:
    """Tensors with this dimension are concatenated along it; the others are stacked."""
    return Batch("ragged", dim)


def padded(dim: str) -> Batch:
    """Tensors with this dimension are padded with zeros to the longest row; then all are stacked."""
    return Batch("padded", dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of a batch: its number of rows, and the length of each row along the joined dimension.

    The runtime passes it to an op that declares a parameter of this type; a walk does not.
    """

    rows: int = 1
    lengths: tuple[int, ...] = ()
    unfinished: frozenset[int] = frozenset()
    """Rows of a chunked op (chunked prefill) that have another chunk to run. Their results are ignored, except along
    the joined dimension."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Start of each row along the joined dimension, and the total length."""
        return tuple(accumulate(self.lengths, initial=0))

    def select(self, rows: Sequence[int]) -> Layout:
        """The layout of some of the rows."""
        unfinished = frozenset(number for number, row in enumerate(rows) if row in self.unfinished)
        return Layout(len(rows), tuple(self.lengths[row] for row in rows), unfinished)


ONE_ROW = Layout()
"""Default value for a parameter of type Layout."""


def rows(batched: T) -> Sequence[T]:
    """Rows of a parameter that is neither a tensor nor static, inside the body of a batched op."""
    return cast("Sequence[T]", batched)


@contextmanager
def failures_of(rows: Sequence[int]) -> Generator[None]:
    """Run a part of a batch: rows that fail there are named by their place in the batch."""
    try:
        yield
    except RowsFailed as failed:
        raise RowsFailed({rows[number]: error for number, error in failed.errors.items()}) from None


def join_arguments(batch: Batch, types: dict[str, Type], columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Join the values of each parameter, one per call, into the arguments of the op's body."""
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
    """Split one joined result into one value per call."""
    axis = batch.axis(type_)
    is_ragged = axis is not None and batch.mode == "ragged"
    actual, expected = (value.shape[axis], sum(layout.lengths)) if is_ragged else (len(value), layout.rows)
    if actual != expected:
        fix = "return one entry per row, and along the batch's dimension one per position"
        raise BadShape(f"an op returned {actual} entries of {type_} for a batch of {expected}\n  fix: {fix}")
    if axis is None:
        return list(value)
    if is_ragged:
        return split(value, axis, layout.lengths)
    return [cut(row, axis, 0, length) for row, length in zip(value, layout.lengths, strict=True)]
