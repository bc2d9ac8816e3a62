"""First difference between two recorded runs of a request.

1. Both versions serve the request alone, one call at a time and in the same order of schedule.
2. The calls of the first version are compared in their order with those of the second one of the same op and number.
3. The first one with another output, state or error is reported. If its arguments are equal, the fault is in this op;
   if not, an earlier part of the walk or route passed something else.
4. Both serve the request again, to get the values that differ: runs are deterministic.

With a tolerance, calls whose outputs differ by at most that much count as equal; states are then not compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mstar.cli.diff.call_recorder import CallId, CallRecorder, RecordedCall
from mstar.walk.values import is_array

Run = Callable[[CallRecorder], None]
"""Serves the request with a recorder as executor."""
MAX_KEPT_CALLS = 256
"""Maximum number of calls whose outputs are compared with a tolerance, from the first that differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first op call that differs."""

    call: CallId
    what: str
    """What differs: "output 0 float32[1, 3]", "state kv", "error", "missing"."""
    arguments: Mapping[str, bool]
    """Whether each argument is equal."""
    max_abs: float | None
    """Maximum absolute difference of the outputs; None if they are not numbers, or equal."""
    note: str = ""
    """Details, such as the errors."""

    @property
    def is_here(self) -> bool:
        """Whether the op is at fault: its arguments are equal."""
        return all(self.arguments.values())


def find_difference(first: Run, second: Run, tolerance: float = 0.0) -> tuple[Difference | None, int]:
    """The first difference, None if there is none; and the number of calls of the first version."""
    tenant = secrets.token_hex(8)  # a run must not find its results in the prefix cache of an earlier one
    calls, others = _record(first, tenant), _record(second, tenant)
    candidates = [key for key, call in calls.items() if not _is_equal(call, others.get(key))]
    kept = frozenset(islice(candidates, MAX_KEPT_CALLS if tolerance else 1))
    if kept:
        for run, recorded in ((first, calls), (second, others)):
            for key, call in _record(run, f"{tenant} again", kept).items():
                recorded[key].values = call.values
    for key in candidates:
        difference = _describe(key, calls[key], others.get(key))
        is_small = difference.max_abs is not None and difference.max_abs <= tolerance
        is_state_only = difference.what.startswith("state ")
        if not tolerance or not (is_small or is_state_only):
            return difference, len(calls)
    if more := [key for key in others if key not in calls]:
        return Difference(more[0], "missing", {}, None, "only the second version makes this call"), len(calls)
    return None, len(calls)


def _record(run: Run, tenant: str, kept: frozenset[CallId] = frozenset()) -> dict[CallId, RecordedCall]:
    recorder = CallRecorder(tenant, kept)
    run(recorder)
    return recorder.calls


def _is_equal(call: RecordedCall, other: RecordedCall | None) -> bool:
    return other is not None and call.result == other.result


def _describe(key: CallId, call: RecordedCall, other: RecordedCall | None) -> Difference:
    if other is None:
        return Difference(key, "missing", {}, None, "only the first version makes this call")
    names = [*call.arguments, *(name for name in other.arguments if name not in call.arguments)]
    arguments = {name: call.arguments.get(name) == other.arguments.get(name) for name in names}
    if call.error != other.error:
        note = f"{call.error or 'no error'}, then {other.error or 'no error'}"
        return Difference(key, "error", arguments, None, note)
    values, other_values = call.values or (), other.values or ()
    pairs = zip(values, other_values, strict=False)
    differing = [
        number for number, pair in enumerate(zip(call.outputs, other.outputs, strict=False)) if pair[0] != pair[1]
    ]
    if differing:
        number = differing[0]
        largest = [_max_abs(*pair) for at, pair in enumerate(pairs) if at in differing]
        known = [each for each in largest if each is not None]
        shown = f" {_describe_value(values[number])}" if values else ""
        note = _shape_note(values[number], other_values[number]) if values and other_values else ""
        return Difference(key, f"output {number}{shown}", arguments, max(known, default=None), note)
    state = next(name for name, each in call.states.items() if other.states.get(name) != each)
    return Difference(key, f"state {state}", arguments, None)


def _max_abs(value: Any, other: Any) -> float | None:
    """Maximum absolute difference of two values; None if they are not arrays or numbers of one shape."""
    if type(value) in (int, float) and type(other) in (int, float):
        return abs(value - other)
    if is_array(value) and is_array(other) and value.shape == other.shape:
        pairs = zip(_numbers(value), _numbers(other), strict=True)
        return max((abs(a - b) for a, b in pairs), default=0.0)
    parts, other_parts = _parts(value), _parts(other)
    if parts is None or other_parts is None or len(parts) != len(other_parts):
        return None
    known = [each for pair in zip(parts, other_parts, strict=True) if (each := _max_abs(*pair)) is not None]
    return max(known, default=None)


def _parts(value: Any) -> list[Any] | None:
    """The parts of a list, tuple or dataclass."""
    if isinstance(value, list | tuple):
        return [*value]
    fields = getattr(type(value), "__dataclass_fields__", None)
    return None if fields is None else [getattr(value, name) for name in fields]


def _numbers(array: Any) -> list[float]:
    flat = array.reshape(-1).tolist()
    return [float(each) for each in flat]


def _describe_value(value: Any) -> str:
    if is_array(value):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _shape_note(value: Any, other: Any) -> str:
    if is_array(value) and is_array(other) and value.shape != other.shape:
        return f"shapes {list(value.shape)} and {list(other.shape)}"
    return ""
