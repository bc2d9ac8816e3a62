"""Array operations (stack, concatenate, pad, split) that work for numpy and torch without importing either.

The library of an array is looked up in `sys.modules`: the code that created the array has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, cast


def is_array(value: Any) -> bool:
    """Whether a value is a tensor of any library."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def stack(items: Sequence[Any]) -> Any:
    """Stack arrays along a new first axis; any other values become a list."""
    return _library(items[0]).stack(list(items)) if items and is_array(items[0]) else list(items)


def concatenate(items: Sequence[Any], axis: int) -> Any:
    """Concatenate arrays along an existing axis."""
    return _library(items[0]).concatenate(list(items), axis)


def pad(items: Sequence[Any], axis: int) -> Any:
    """Pad arrays with zeros to the longest along an axis, and stack them."""
    first = items[0]
    shape = [len(items), *first.shape]
    shape[axis + 1] = max(item.shape[axis] for item in items)
    filled = first.new_zeros(shape) if hasattr(first, "new_zeros") else _library(first).zeros(shape, first.dtype)
    before = (slice(None),) * axis
    for row, item in enumerate(items):
        filled[(row, *before, slice(item.shape[axis]))] = item
    return filled


def cut(value: Any, axis: int, start: int, end: int) -> Any:
    """Slice an array along an axis."""
    return value[(slice(None),) * axis + (slice(start, end),)]


def split(value: Any, axis: int, lengths: Sequence[int]) -> list[Any]:
    """Split an array along an axis into parts of these lengths."""
    if hasattr(value, "split"):  # torch
        return list(value.split(list(lengths), axis))
    before = (slice(None),) * axis
    ends = list(accumulate(lengths, initial=0))
    return [value[(*before, slice(start, end))] for start, end in pairwise(ends)]


def inference_mode() -> AbstractContextManager[Any]:
    """Context in which torch, if it is imported, records nothing for autograd. Ops run in it."""
    torch = sys.modules.get("torch")
    is_enabled = getattr(torch, "is_inference_mode_enabled", None)  # missing while another thread imports torch
    return nullcontext() if torch is None or is_enabled is None or is_enabled() else torch.inference_mode()


def is_device_failure(error: BaseException) -> bool:
    """Whether an accelerator reported an error that stays: every later operation of the process on it fails too."""
    kind = getattr(sys.modules.get("torch"), "AcceleratorError", None)
    return kind is not None and isinstance(error, kind)


def without_graph(value: Any) -> Any:
    """A value without its autograd graph: a view of a parameter has one even in inference mode."""
    return value.detach() if getattr(value, "requires_grad", False) else value


def is_finite(value: Any) -> bool:
    """Whether an array, or every array of a list, is free of NaN and infinity."""
    if is_array(value):
        library = _library(value)
        if library.__name__ == "torch" and bool(value.sum().isfinite()):
            return True  # one pass instead of two; an overflow of the sum is decided below
        return bool(library.isfinite(value).all())
    if len(value) > 1 and all(map(_is_on_device, value)) and is_finite(stack([item.sum() for item in value])):
        return True  # the host waits for the device once, not once per row
    return all(map(is_finite, value))


def to_device(value: Any, device: Any) -> Any:
    """A torch tensor on a device, by a copy that does not wait; any other value unchanged. A copy to the host waits."""
    return value.to(device, non_blocking=device.type != "cpu") if _is_torch(value) else value


def tensors_to_device(value: Any, device: Any) -> Any:
    """A value with the tensors in its dicts, lists and tuples on a device; single numbers are read on the host."""
    if isinstance(value, dict):
        return {key: tensors_to_device(entry, device) for key, entry in cast("dict[Any, Any]", value).items()}
    if type(value) in {list, tuple}:
        return type(value)(tensors_to_device(entry, device) for entry in value)
    return to_device(value, device) if _is_torch(value) and value.dim() else value


def to_host(value: Any) -> Any:
    """A torch tensor on the host; any other value unchanged."""
    return value.cpu() if _is_torch(value) else value


def _is_on_device(value: Any) -> bool:
    """Whether a value is a torch tensor that is not in host memory."""
    return _is_torch(value) and value.device.type != "cpu"


def _library(array: Any) -> Any:
    return sys.modules["torch" if _is_torch(array) else type(array).__module__.partition(".")[0]]


def _is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor, of a subclass too."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))
