"""Components: weights that live together, and the ops a walk may call on them.

Calling an op runs its body on a batch of one, or, under the tracer, records a call. Making a component must be cheap:
heavy libraries and weights belong in the op's body or what it calls.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from mstar.errors import (
    BadShape,
    NotFinite,
    RouteError,
    RowsFailed,
    format_count,
    format_site,
)
from mstar.graph.types import FLOATS, StateType, TensorType, Type
from mstar.walk import context
from mstar.walk.batching import Batch, Layout, alone, join_arguments, split_result
from mstar.walk.states import KV, State
from mstar.walk.types import Hint, read_hint, read_return
from mstar.walk.values import is_finite

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class Signature:
    """What an op takes and gives, read from its annotations."""

    params: dict[str, Hint]
    outs: tuple[Hint, ...]
    gives_tuple: bool
    layout: str | None
    """The parameter that receives the batch's Layout, if there is one."""


class Op:
    """One callable of a component: the unit of batching, compiling, placing and metering."""

    def __init__(self, body: Callable[..., Any], batch: Batch, *, chunked: bool, idempotent: bool) -> None:
        if chunked and not batch.dim:
            raise TypeError(f"op `{body.__name__}` is chunked, and batch={batch.mode} has no dimension to cut")
        self.body = body
        self.batch = batch
        self.chunked = chunked
        """Whether a call may be run in several pieces along the batch's dimension."""
        self.idempotent = idempotent
        """Whether a call may be run again when a worker was lost; False for an op that acts on the world."""
        self.name = body.__name__
        self.call_signature = inspect.signature(body)

    @functools.cached_property
    def signature(self) -> Signature:
        """The op's types. Raises when an annotation cannot be read."""
        hints = typing.get_type_hints(self.body, include_extras=True)
        params: dict[str, Hint] = {}
        layout: str | None = None
        for name in list(self.call_signature.parameters)[1:]:
            if name not in hints:
                raise TypeError(f"parameter `{name}` has no annotation")
            if hints[name] is Layout:
                layout = name
            else:
                params[name] = read_hint(hints[name])
        if "return" not in hints:
            raise TypeError("the result has no annotation (write -> None if it gives nothing)")
        outs, gives_tuple = read_return(hints["return"])
        return Signature(params, outs, gives_tuple, layout)

    @functools.cached_property
    def _types(self) -> dict[str, Type]:
        return {name: hint.type for name, hint in self.signature.params.items() if not hint.is_static}

    def bind(self, component: Component, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included, so that all calls of a batch have the same ones."""
        bound = self.call_signature.bind(component, *args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in list(bound.arguments.items())[1:] if name in self.signature.params}

    @functools.cached_property
    def axes(self) -> dict[str, int]:
        """The parameters that have the batch's dimension, and where."""
        found = {name: self.batch.axis(type_) for name, type_ in self._types.items()}
        return {name: axis for name, axis in found.items() if axis is not None}

    @functools.cached_property
    def _sized_parameter(self) -> tuple[str, int]:
        return next(iter(self.axes.items()), ("", 0))

    @functools.cached_property
    def states(self) -> dict[str, bool]:
        """The parameters that are states, and whether the op extends them."""
        params = self.signature.params.items()
        return {name: not hint.is_view for name, hint in params if isinstance(hint.type, StateType)}

    @functools.cached_property
    def _tensors(self) -> list[tuple[str, TensorType, int | None]]:
        return [(name, t, self.batch.axis(t)) for name, t in self._types.items() if isinstance(t, TensorType)]

    @functools.cached_property
    def _floats(self) -> list[int]:
        types = enumerate(hint.type for hint in self.signature.outs)
        return [number for number, t in types if isinstance(t, TensorType) and t.dtype in FLOATS]

    def length(self, arguments: dict[str, Any]) -> int:
        """The size of a call along the batch's dimension."""
        name, axis = self._sized_parameter
        return arguments[name].shape[axis] if name else 0

    def batch_key(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Calls share a batch only if this is equal: dtypes, and the sizes that joining does not level."""
        if self.batch is alone:
            return ()
        found: list[Any] = []
        for name, type_, axis in self._tensors:
            value = arguments[name]
            shape = getattr(value, "shape", None)
            if shape is None or len(shape) != len(type_.dims):
                given = f"a {type(value).__name__}" if shape is None else f"one of shape {tuple(shape)}"
                fix = f"pass an array of {format_count(len(type_.dims), 'dimension')}"
                raise BadShape(f"op `{self.name}` takes `{name}` as {type_} and was given {given}\n  fix: {fix}")
            found.append(value.dtype)
            if axis is None:
                found.append(shape)
            elif len(shape) > 1:
                found += (shape[:axis], shape[axis + 1 :])
        return tuple(found)

    def run(
        self,
        component: Component,
        columns: dict[str, list[Any]],
        count: int,
        unfinished: frozenset[int] = frozenset(),
    ) -> list[tuple[Any, ...]]:
        """Run so many calls as one batch, given each parameter's values; the results in the same order.

        Static arguments must be equal, and so must `batch_key`. Calls that give NaN or infinity are named by RowsFailed.
        """
        if self.batch is alone:
            calls = ({name: column[row] for name, column in columns.items()} for row in range(count))
            results = [self._results(self.body(component, **call)) for call in calls]
            self._raise_not_finite(component, results, self._floats)
            return results
        signature = self.signature
        static = {name: column[0] for name, column in columns.items() if name not in self._types}
        dynamic = {name: column for name, column in columns.items() if name in self._types}
        sized, axis = self._sized_parameter
        layout = Layout(count, tuple([v.shape[axis] for v in columns[sized]]) if sized else (), unfinished)
        given = static | ({signature.layout: layout} if signature.layout else {})
        joined = self._results(self.body(component, **join_arguments(self.batch, self._types, dynamic), **given))
        if not joined:
            return [()] * count
        hints = signature.outs
        parted = [split_result(self.batch, hint.type, value, layout) for hint, value in zip(hints, joined, strict=True)]
        results = list(zip(*parted, strict=True))
        # one look at what is joined: what was only padded may be anything, so a row is judged by its own part
        if suspects := [number for number in self._floats if not is_finite(joined[number])]:
            self._raise_not_finite(component, results, suspects, unfinished)
        return results

    def _raise_not_finite(
        self,
        component: Component,
        results: list[tuple[Any, ...]],
        suspects: list[int],
        unfinished: frozenset[int] = frozenset(),
    ) -> None:
        errors: dict[int, Exception] = {}
        for number in suspects:
            type_ = self.signature.outs[number].type
            is_joined = self.batch.axis(type_) is not None
            for row, values in enumerate(results):
                if (is_joined or row not in unfinished) and not is_finite(values[number]):
                    what = f"{component.name}.{self.name} gave NaN or infinity in {type_}"
                    fix = "look for an overflow or a division by zero in the op and in what it was given"
                    errors[row] = NotFinite(f"{what}\n  fix: {fix}")
        if errors:
            raise RowsFailed(errors)

    def _results(self, given: Any) -> tuple[Any, ...]:
        if not self.signature.outs:
            return ()
        return tuple(given) if self.signature.gives_tuple else (given,)

    def call(self, component: Component, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What happens when an author's code calls the op."""
        if (tracer := context.tracer.get()) is not None:
            return tracer.call(component, self, args, kwargs)
        if context.session.get() is not None:
            raise RouteError(
                f"{format_site(context.author_site())}: the route called the op {component.name}.{self.name}\n"
                f"  fix: ops run on workers: call it inside a walk, and await that walk"
            )
        given = self.bind(component, args, kwargs)
        self.batch_key(given)  # raises, here as in a crowd, if an argument has too many dimensions or too few
        try:
            (results,) = self.run(component, {name: [value] for name, value in given.items()}, 1)
        except RowsFailed as failed:
            raise failed.errors.get(0, failed) from None  # nobody who calls an op knows of rows
        if self.signature.gives_tuple:
            return results
        return results[0] if results else None


@overload
def op(body: F) -> F: ...
@overload
def op(*, batch: Batch = alone, chunked: bool = False, idempotent: bool = True) -> Callable[[F], F]: ...
def op(
    body: F | None = None, *, batch: Batch = alone, chunked: bool = False, idempotent: bool = True
) -> F | Callable[[F], F]:
    """Mark a method as an op. `batch` says how requests join (`alone`, `stacked`, `ragged("T")`, `padded("T")`).

    `chunked` says that a long call may be run in several pieces along the batch's dimension, one after the other.
    `idempotent=False` says that it acts on the world, as a robot's arm does: it is not done again when a worker was lost.
    """
    if body is None:
        return cast("Callable[[F], F]", functools.partial(op, batch=batch, chunked=chunked, idempotent=idempotent))
    the_op = Op(body, batch, chunked=chunked, idempotent=idempotent)

    @functools.wraps(body)
    def call(self: Component, *args: Any, **kwargs: Any) -> Any:
        return the_op.call(self, args, kwargs)

    call.__dict__["op"] = the_op
    return cast("F", call)


class Component:
    """Weights that live together on the same device(s). Methods marked `@op` are what a walk may call."""

    name = "?"
    """The attribute of the model that holds this component; set when it is assigned there."""
    threads: int | None = None
    """How many threads its ops may use; None leaves it to the libraries. Whoever runs it there says so."""
    weights: tuple[Any, ...] = ()
    """The files that it loads, as values of `mstar.nn.weights.sources`, for those who ask what a model needs."""

    def kv(self) -> KV:
        """A fresh attention cache."""
        return self.state(KV)

    def state(self, kind: type[S]) -> S:
        """A fresh state of any kind."""
        if (tracer := context.tracer.get()) is not None:
            return cast("S", tracer.new_state(self, kind))
        if (session := context.session.get()) is not None:
            return cast("S", session.new_state(self, kind))
        return self.make_state(kind)

    def make_state(self, kind: type[S]) -> S:
        """The real thing, where the component runs. Override it when a state needs more than `kind()`."""
        return kind()

    def load_state(self, kind: type[S], exported: Any) -> S:
        """A state of what `State.export` gave. Override both, or none. Raises OutOfPages."""
        state = self.make_state(kind)
        vars(state).update(exported)
        return state

    def prepare(self) -> None:
        """Load what the ops need now, and not with the first request. Override it when there is something to load."""

    def memory_stats(self) -> dict[str, int]:
        """How much of its memory is used, counted. Override it when memory is limited."""
        return {}

    def restore(self, states: list[State]) -> None:
        """Make states that have left resident again, or raise OutOfPages. Override it when states `is_evictable`."""

    @classmethod
    def ops(cls) -> dict[str, Op]:
        """The ops of this component, by name."""
        found = ((name, getattr(cls, name, None)) for name in dir(cls))
        return {name: member.__dict__["op"] for name, member in found if "op" in getattr(member, "__dict__", ())}

    @classmethod
    def state_kinds(cls) -> dict[str, type[State]]:
        """The kinds of state its ops work on, by name."""
        kinds: dict[str, type[State]] = {KV.__name__: KV}
        for each_op in cls.ops().values():
            for hint in each_op.signature.params.values():
                if isinstance(hint.python, type) and issubclass(hint.python, State):
                    kinds[hint.python.__name__] = hint.python
        return kinds

    if not TYPE_CHECKING:  # it would hide a mistyped op from a static checker

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property of its own failed: its own error says more than ours
                return object.__getattribute__(self, name)
            known = self.ops()
            if (tracer := context.tracer.get()) is not None and not name.startswith("_"):
                return tracer.missing(f"component `{self.name}` has no op `{name}`{nearest(name, known)}", known)
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}{nearest(name, known)}; its ops are {listed(known)}"
            )
