"""Joining and cutting real values without importing a tensor library.

A value's own library does the work: whoever holds an array has already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any


def is_array(value: Any) -> bool:
    """Whether a value is a tensor of some library, rather than a plain object."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def stack(items: Sequence[Any]) -> Any:
    """Values joined in order: arrays gain an axis, anything else becomes a list."""
    return _library(items[0]).stack(list(items)) if items and is_array(items[0]) else list(items)


def concatenate(items: Sequence[Any], axis: int) -> Any:
    """Arrays joined along an axis they have."""
    return _library(items[0]).concatenate(list(items), axis)


def pad(items: Sequence[Any], axis: int) -> Any:
    """Arrays filled up with zeros to the longest along an axis, and stacked."""
    first = items[0]
    shape = [len(items), *first.shape]
    shape[axis + 1] = max(item.shape[axis] for item in items)
    filled = first.new_zeros(shape) if hasattr(first, "new_zeros") else _library(first).zeros(shape, first.dtype)
    before = (slice(None),) * axis
    for row, item in enumerate(items):
        filled[(row, *before, slice(item.shape[axis]))] = item
    return filled


def cut(value: Any, axis: int, start: int, end: int) -> Any:
    """The part of an array between two positions of an axis."""
    return value[(slice(None),) * axis + (slice(start, end),)]


def split(value: Any, axis: int, lengths: Sequence[int]) -> list[Any]:
    """An array cut along an axis into parts of these lengths."""
    if hasattr(value, "split"):  # torch has one call for it
        return list(value.split(list(lengths), axis))
    before = (slice(None),) * axis
    ends = list(accumulate(lengths, initial=0))
    return [value[(*before, slice(start, end))] for start, end in pairwise(ends)]


def is_finite(value: Any) -> bool:
    """Whether no number in an array, or in a list of arrays, is NaN or infinite."""
    if is_array(value):
        library = _library(value)
        if library.__name__ == "torch" and bool(value.sum().isfinite()):
            return True  # one pass, where the other makes two; only a sum that is too large says nothing
        return bool(library.isfinite(value).all())
    return all(map(is_finite, value))


def _library(array: Any) -> Any:
    return sys.modules[type(array).__module__.partition(".")[0]]
