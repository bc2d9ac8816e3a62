"""Joining and cutting real values without importing a tensor library.

A value's own library does the work: whoever holds an array has already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    longest = max(item.shape[axis] for item in items)
    filled: list[Any] = []
    for item in items:
        shape = [*item.shape]
        shape[axis] = longest - shape[axis]
        rest = item.new_zeros(shape) if hasattr(item, "new_zeros") else _library(item).zeros(shape, item.dtype)
        filled.append(concatenate([item, rest], axis))
    return stack(filled)


def cut(value: Any, axis: int, start: int, end: int) -> Any:
    """The part of an array between two positions of an axis."""
    return value[(slice(None),) * axis + (slice(start, end),)]


def _library(array: Any) -> Any:
    return sys.modules[type(array).__module__.partition(".")[0]]
