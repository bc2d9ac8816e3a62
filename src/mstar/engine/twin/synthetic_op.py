"""SyntheticOp: an op whose results are made from its annotation and from what a profile recorded, not computed.

A named dimension has its size in the settings, else in the arguments, else in the nearest recorded call, else a
default. Floats are a tone, integers and flags are 0. An object is the recorded one or has its defaults; a list has one
item, and a plain integer is 1, because it is often the length of a list.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from mstar.graph.types import ListType, TensorType
from mstar.nn.synthetic_values import make_array
from mstar.walk.component import Component, Op
from mstar.walk.twin import TwinSizes
from mstar.walk.types import Hint, read_hint

DEFAULT_SIZE = 16
"""Size of a dimension about which nothing is known."""
_EMPTY: Mapping[Any, Callable[[], Any]] = {list: list, tuple: tuple, dict: dict}
RecordedOutputs = Callable[[int], "tuple[Any, ...] | None"]
"""Maps the length of a call to the outputs of the nearest recorded call; None without one."""


def nothing_recorded(_: int) -> None:
    """No call was recorded."""
    return


class SyntheticOp(Op):
    """Stands for an op of a component without weights. `name` is "component.op"."""

    def __init__(self, op: Op, name: str, sizes: TwinSizes, recorded: RecordedOutputs = nothing_recorded) -> None:
        super().__init__(
            op.body, op.batch, chunked=op.chunked, idempotent=op.idempotent, rowwise_on_cpu=op.rowwise_on_cpu
        )
        self._full_name = name
        self._sizes = sizes
        self._recorded = recorded

    def run(
        self,
        component: Component,  # noqa: ARG002 - as every op
        columns: dict[str, list[Any]],
        count: int,
        unfinished: frozenset[int] = frozenset(),  # noqa: ARG002
        *,
        is_checked: bool = True,  # noqa: ARG002
    ) -> list[tuple[Any, ...]]:
        """Make the results of `count` calls."""
        return [self._outputs({name: column[row] for name, column in columns.items()}) for row in range(count)]

    def _outputs(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        outs = self.signature.outs
        if not outs:
            return ()
        recorded = self._recorded(self.lengths([dict(arguments)])[0]) or (None,) * len(outs)
        known = self._argument_dims(arguments)
        return tuple(self._value(hint, known, value) for hint, value in zip(outs, recorded, strict=True))

    def _argument_dims(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of the named dimensions of the arguments."""
        dims: dict[str, int] = {}
        for name, hint in self.signature.params.items():
            shape = getattr(arguments.get(name), "shape", None)
            if isinstance(hint.type, TensorType) and shape is not None:
                dims |= {dim: size for dim, size in zip(hint.type.dims, shape, strict=True) if isinstance(dim, str)}
        return dims

    def _value(self, hint: Hint, known: Mapping[str, int], recorded: Any) -> Any:
        if isinstance(hint.type, TensorType):
            return make_array(hint.type.dtype, self._shape(hint.type, known, getattr(recorded, "shape", ())))
        if recorded is not None:
            return recorded
        if isinstance(hint.type, ListType):
            item = read_hint(typing.get_args(hint.python)[0])
            return [self._value(item, known, None)] * self._sizes.dims.get(self._full_name, 1)
        return self._object(hint.python)

    def _shape(self, type_: TensorType, known: Mapping[str, int], recorded: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an output."""
        sizes: list[int] = []
        for axis, dim in enumerate(type_.dims):
            if isinstance(dim, int):
                sizes.append(dim)
                continue
            given = self._sizes.dims.get(f"{self._full_name}.{dim}")
            fallback = recorded[axis] if axis < len(recorded) else DEFAULT_SIZE
            sizes.append(given if given is not None else known.get(dim, fallback))
        return tuple(sizes)

    def _object(self, kind: Any) -> Any:
        """An object of a type: `None` if it is optional, 1 for an integer, and of a dataclass with such fields."""
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            options = typing.get_args(kind)
            return None if type(None) in options else self._object(options[0])
        if kind is int:
            return self._sizes.dims.get(self._full_name, 1)
        if (origin := typing.get_origin(kind) or kind) in _EMPTY:
            return _EMPTY[origin]()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            hints = typing.get_type_hints(kind)
            required = [
                one
                for one in dataclasses.fields(kind)
                if one.init and one.default is one.default_factory is dataclasses.MISSING
            ]
            return kind(**{one.name: self._object(hints[one.name]) for one in required})
        return kind() if kind in (str, bytes, float, bool) else None
