"""Component: a set of weights on the same device(s), with the ops that walks can call.

Calling an op runs its body on a batch of one or, under the tracer, records the call. The constructor of a component
must be cheap: import heavy libraries and load weights in `prepare` or in the body of an op.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from mstar.errors import (
    BadShape,
    NotFinite,
    RouteError,
    RowsFailed,
    format_count,
    format_names,
    format_site,
    suggest_name,
)
from mstar.graph.types import FLOATS, StateType, TensorType, Type
from mstar.walk import context
from mstar.walk.batching import Batch, Layout, alone, failures_of, join_arguments, split_result
from mstar.walk.result_check import check_results
from mstar.walk.states import KV, State
from mstar.walk.twin import OpBody, TwinSizes
from mstar.walk.types import Hint, read_hint, read_return
from mstar.walk.values import inference_mode, is_finite, tensors_to_device, to_device, to_host, without_graph

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=State)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameter and result types of an op, parsed from its annotations."""

    params: dict[str, Hint]
    outs: tuple[Hint, ...]
    gives_tuple: bool
    layout: str | None
    """Name of the parameter that receives the batch's Layout, if any."""


class Op:
    """A method of a component that walks call: the unit of batching, placement, compilation and metrics."""

    def __init__(
        self, body: Callable[..., Any], batch: Batch, *, chunked: bool, idempotent: bool, rowwise_on_cpu: bool
    ) -> None:
        if chunked and not batch.dim:
            raise TypeError(
                f"op `{body.__name__}` is chunked, but batch={batch.mode} has no dimension to split\n"
                f'  fix: use batch=ragged("T") or padded("T"), or remove chunked=True'
            )
        self.body = body
        self.batch = batch
        self.chunked = chunked
        """Whether a call can run in several chunks along the batch's dimension (chunked prefill)."""
        self.idempotent = idempotent
        """Whether a call can be retried after the loss of a worker; False for an op with external side effects."""
        self.rowwise_on_cpu = rowwise_on_cpu
        """Whether a CPU runs the body once for each row of a batch, so that no result depends on the others."""
        self.name = body.__name__
        self.call_signature = inspect.signature(body)

    @functools.cached_property
    def signature(self) -> Signature:
        """Types of the op. Raises TypeError for a missing or unsupported annotation."""
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
            raise TypeError("the result has no annotation (write -> None if there is no result)")
        outs, gives_tuple = read_return(hints["return"])
        return Signature(params, outs, gives_tuple, layout)

    @functools.cached_property
    def _types(self) -> dict[str, Type]:
        return {name: hint.type for name, hint in self.signature.params.items() if not hint.is_static}

    def bind(self, component: Component, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a call by name, with defaults applied, so that all calls of a batch have the same names."""
        bound = self.call_signature.bind(component, *args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in list(bound.arguments.items())[1:] if name in self.signature.params}

    @functools.cached_property
    def axes(self) -> dict[str, int]:
        """Parameters with the batch's dimension, and its axis in each."""
        axes = {name: self.batch.axis(type_) for name, type_ in self._types.items()}
        return {name: axis for name, axis in axes.items() if axis is not None}

    @functools.cached_property
    def _sized_parameter(self) -> tuple[str, int]:
        return next(iter(self.axes.items()), ("", 0))

    @functools.cached_property
    def states(self) -> dict[str, bool]:
        """Parameters that are states, and whether the op extends each."""
        params = self.signature.params.items()
        return {name: not hint.is_view for name, hint in params if isinstance(hint.type, StateType)}

    @functools.cached_property
    def _tensors(self) -> list[tuple[str, TensorType, int | None]]:
        return [(name, t, self.batch.axis(t)) for name, t in self._types.items() if isinstance(t, TensorType)]

    @functools.cached_property
    def is_uniform(self) -> bool:
        """Whether all calls with equal static arguments can share a batch."""
        return self.batch is not alone and not self._tensors

    @functools.cached_property
    def _floats(self) -> list[int]:
        types = enumerate(hint.type for hint in self.signature.outs)
        return [number for number, t in types if isinstance(t, TensorType) and t.dtype in FLOATS]

    def lengths(self, calls: Iterable[dict[str, Any]]) -> list[int]:
        """Size of each call along the batch's dimension, in most ops its number of tokens."""
        name, axis = self._sized_parameter
        return [call[name].shape[axis] if name else 0 for call in calls]

    @functools.cached_property
    def _only_vector(self) -> str:
        """The only tensor parameter, if it has the batch's dimension alone: the tokens of a language model."""
        vectors = [name for name, type_, axis in self._tensors if axis == 0 and len(type_.dims) == 1]
        return vectors[0] if len(vectors) == len(self._tensors) == 1 else ""

    def batch_key(self, arguments: dict[str, Any]) -> Hashable:
        """Key of calls that can share a batch: their dtypes, and their sizes except along the batch's dimension."""
        if self._only_vector:
            value = arguments[self._only_vector]
            if getattr(value, "ndim", None) == 1:
                return value.dtype
        if self.batch is alone or not self._tensors:
            return ()
        key: list[Any] = []
        for name, type_, axis in self._tensors:
            value = arguments[name]
            shape = getattr(value, "shape", None)
            if shape is None or len(shape) != len(type_.dims):
                got = f"a {type(value).__name__}" if shape is None else f"shape {tuple(shape)}"
                fix = f"pass an array with {format_count(len(type_.dims), 'dimension')}"
                raise BadShape(f"op `{self.name}` expects `{name}` as {type_}, got {got}\n  fix: {fix}")
            key.append(value.dtype)
            if axis is None:
                key.append(shape)
            elif len(shape) > 1:
                key += (shape[:axis], shape[axis + 1 :])
        return tuple(key)

    def run(
        self,
        component: Component,
        columns: dict[str, list[Any]],
        count: int,
        unfinished: frozenset[int] = frozenset(),
        *,
        is_checked: bool = True,
    ) -> list[tuple[Any, ...]]:
        """Run `count` calls as one batch; return their results in the same order. `columns` has one value per call.

        All calls must have equal static arguments and an equal `batch_key`. Raises RowsFailed for calls whose result
        has NaN or infinity and, if `is_checked`, BadShape for a result that differs from the annotation.
        """
        if self.batch is alone:
            calls = (
                self._on_device(component, {name: column[row] for name, column in columns.items()})
                for row in range(count)
            )
            results = [self._results(component, self.body(component, **call), is_checked) for call in calls]
            self._raise_not_finite(component, results, self._floats)
            return results
        if self.rowwise_on_cpu and count > 1 and component.is_on_cpu:
            return self._run_rows(component, columns, count, unfinished, is_checked=is_checked)
        signature = self.signature
        static = {name: column[0] for name, column in columns.items() if name not in self._types}
        dynamic = {name: column for name, column in columns.items() if name in self._types}
        sized, axis = self._sized_parameter
        layout = Layout(count, tuple([v.shape[axis] for v in columns[sized]]) if sized else (), unfinished)
        fixed = static | ({signature.layout: layout} if signature.layout else {})
        if component.device is not None:
            dynamic = self._on_one_device(component.device, dynamic)
        arguments = self._on_device(component, join_arguments(self.batch, self._types, dynamic))
        returned = self.body(component, **arguments, **fixed)
        joined = self._results(component, returned, is_checked)
        if not joined:
            return [()] * count
        hints = signature.outs
        columns_out = [
            split_result(self.batch, hint.type, value, layout) for hint, value in zip(hints, joined, strict=True)
        ]
        results = list(zip(*columns_out, strict=True))
        # Check the joined results first: one pass. Padding can be NaN, so only then check each row without padding.
        if suspects := [number for number in self._floats if not is_finite(joined[number])]:
            self._raise_not_finite(component, results, suspects, unfinished)
        return results

    def _run_rows(
        self,
        component: Component,
        columns: dict[str, list[Any]],
        count: int,
        unfinished: frozenset[int],
        *,
        is_checked: bool,
    ) -> list[tuple[Any, ...]]:
        """Run each call by itself."""
        results: list[tuple[Any, ...]] = []
        for row in range(count):
            own = frozenset({0}) if row in unfinished else frozenset[int]()
            with failures_of([row]):
                call = {name: [column[row]] for name, column in columns.items()}
                results += self.run(component, call, 1, own, is_checked=is_checked)
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
                    problem = f"{component.name}.{self.name} returned NaN or infinity in {type_}"
                    fix = "look for an overflow or a division by zero in the op and in its arguments"
                    errors[row] = NotFinite(f"{problem}\n  fix: {fix}")
        if errors:
            raise RowsFailed(errors)

    def _results(self, component: Component, returned: Any, is_checked: bool) -> tuple[Any, ...]:
        signature = self.signature
        if not signature.outs:
            return ()
        values = returned if signature.gives_tuple else (returned,)
        if is_checked:
            check_results(f"{component.name}.{self.name}", self.body, self.batch, signature.outs, values)
        if component.device is not None:
            values = [
                to_host(value) if _is_control(hint.type) else value
                for hint, value in zip(signature.outs, values, strict=True)
            ]
        return tuple(map(without_graph, values))

    def _on_one_device(self, device: Any, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The columns of a batch. Tensors of one column can be on two devices: a row can come from another worker."""
        data = [name for name, type_, _ in self._tensors if not _is_control(type_)]
        mixed = [name for name in data if len({getattr(row, "device", None) for row in columns[name]}) > 1]
        return columns | {name: [to_device(row, device) for row in columns[name]] for name in mixed}

    def _on_device(self, component: Component, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the body with tensors, except control values, on the device of the component."""
        if component.device is None:
            return arguments
        moved = (name for name, type_, _ in self._tensors if not _is_control(type_))
        return arguments | {name: to_device(arguments[name], component.device) for name in moved}

    def call(self, component: Component, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call in author code: record it under the tracer, else run it as a batch of one."""
        if (tracer := context.tracer.get()) is not None:
            return tracer.call(component, self, args, kwargs)
        if context.session.get() is not None:
            raise RouteError(
                f"{format_site(context.author_site())}: the route called the op {component.name}.{self.name}\n"
                f"  fix: call the op inside a walk, and await that walk; ops run on workers"
            )
        arguments = self.bind(component, args, kwargs)
        self.batch_key(arguments)  # raises BadShape for a wrong number of dimensions, as in a batch
        component.prepare_once()
        try:
            with inference_mode():
                (results,) = self.run(component, {name: [value] for name, value in arguments.items()}, 1)
        except RowsFailed as failed:
            raise failed.errors.get(0, failed) from None  # the caller has one row
        if self.signature.gives_tuple:
            return results
        return results[0] if results else None


def _is_control(type_: Type) -> bool:
    """Whether a value is read on the host: integers and flags with at most one dimension."""
    return isinstance(type_, TensorType) and type_.dtype not in FLOATS and len(type_.dims) <= 1


@overload
def op(body: F) -> F: ...
@overload
def op(
    *, batch: Batch = alone, chunked: bool = False, idempotent: bool = True, rowwise_on_cpu: bool = False
) -> Callable[[F], F]: ...
def op(
    body: F | None = None,
    *,
    batch: Batch = alone,
    chunked: bool = False,
    idempotent: bool = True,
    rowwise_on_cpu: bool = False,
) -> F | Callable[[F], F]:
    """Mark a method as an op. `batch` is its batch layout (`alone`, `stacked`, `ragged("T")`, `padded("T")`).

    `chunked=True` allows the runtime to split a long call into chunks along the batch's dimension that run one after
    the other (chunked prefill). `idempotent=False` declares external side effects, such as moving a robot's arm: the
    call is not retried after the loss of a worker. `rowwise_on_cpu=True` makes a CPU run the body once for each row:
    libraries choose by the number of rows how they sum, so that the last bits of a request would depend on others.
    """
    options: dict[str, Any] = {
        "batch": batch,
        "chunked": chunked,
        "idempotent": idempotent,
        "rowwise_on_cpu": rowwise_on_cpu,
    }
    if body is None:
        return cast("Callable[[F], F]", functools.partial(op, **options))
    marked = Op(body, **options)

    @functools.wraps(body)
    def call(self: Component, *args: Any, **kwargs: Any) -> Any:
        return marked.call(self, args, kwargs)

    call.__dict__["op"] = marked
    return cast("F", call)


class Component:
    """Weights on the same device(s). A walk can call the methods marked `@op`."""

    name = "?"
    """The model's attribute for this component, set by the assignment."""
    threads: int | None = None
    """Maximum number of threads for its ops, set by the worker; None is the default of the libraries."""
    runs_on_device: ClassVar[bool] = False
    """Whether it loads its weights on `device`. Other components of a worker with a device stay on the CPU."""
    device: Any = None
    """The torch device of its weights, set by the worker before `prepare`; None is the CPU of a worker without another
    device. Float tensors are moved to it before an op, except those in a list, and float results stay there. Integers
    and flags with at most one dimension, which walks and routes read, are on the host."""
    runs_on_ranks: ClassVar[bool] = False
    """Whether the ranks of a worker, which are processes, can compute it together. Each has all its states."""
    rank: Any = None
    """The rank of this process (`mstar.nn.ranks`), set by a worker with several ranks before `prepare`."""
    supported_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of `[components.NAME]` in a placement that it supports."""
    operator_settings: Mapping[str, str] = MappingProxyType({})
    """Those settings of its placement, set before `prepare`."""
    adapters: Mapping[str, str] = MappingProxyType({})
    """Folders of the LoRA adapters in its placement, by name, if `adapters` is a setting that it supports."""
    memory: Any = None
    """Memory of `device` that the components of the worker share (`mstar.nn.device_memory`), set by the worker before
    `prepare`; None if it is not limited."""
    weights: tuple[Any, ...] = ()
    """The weight files that it loads, as values of `mstar.nn.weights.sources`."""
    _is_prepared = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Note calls of `prepare`, so that `prepare_once` does not repeat one by the author."""
        super().__init_subclass__(**options)
        if "prepare" in vars(cls):
            cls.prepare = cls._noting_call(cls.prepare)

    @staticmethod
    def _noting_call(prepare: Any) -> Any:
        @functools.wraps(prepare)
        def call(self: Component) -> None:
            was_prepared, self._is_prepared = self._is_prepared, True  # first: it can call ops of its own
            try:
                prepare(self)
            except BaseException:
                self._is_prepared = was_prepared
                raise

        return call

    def kv(self) -> KV:
        """Create an empty KV cache."""
        return self.state(KV)

    def state(self, kind: type[S]) -> S:
        """Create an empty state of any kind."""
        if (tracer := context.tracer.get()) is not None:
            return cast("S", tracer.new_state(self, kind))
        if (session := context.session.get()) is not None:
            return cast("S", session.new_state(self, kind))
        return self.new_state(kind)

    def new_state(self, kind: type[S]) -> S:
        """Create a state in this process, after `prepare`."""
        self.prepare_once()
        with inference_mode():
            return self.make_state(kind)

    def make_state(self, kind: type[S]) -> S:
        """Create a state on the worker. Override it when a state needs more than `kind()`."""
        return kind()

    def load_state(self, kind: type[S], exported: Any) -> S:
        """Create a state from the result of `State.export`. Override both or neither. Raises OutOfPages."""
        state = self.make_state(kind)
        vars(state).update(exported if self.device is None else tensors_to_device(exported, self.device))
        return state

    def prepare(self) -> None:
        """Load weights at startup instead of in the first request. Override it when there is something to load."""

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:  # noqa: ARG002 - for subclasses
        """Get ready to serve without weights (`mstar twin`), instead of `prepare`. Returns the bodies of its ops there.

        Other ops return synthetic values of their types: by default all, or none of a component without weights.
        """
        return {} if self.weights or type(self).prepare is not Component.prepare else self.own_bodies()

    @classmethod
    def own_bodies(cls, *names: str) -> dict[str, OpBody]:
        """Bodies of these ops, by default of all, for a twin in which they run as they are."""
        return {name: op.body for name, op in cls.ops().items() if name in names or not names}

    def prepare_once(self) -> None:
        """Call `prepare` unless it was called before. Every way to run a model does this first."""
        if not self._is_prepared:
            self.prepare()
            self._is_prepared = True

    def preload(self) -> None:
        """Import libraries and map files for a later `prepare`. A hot standby calls it, for every component."""

    def on_device(self, loaded: T) -> T:
        """A tensor, or a network for inference, on `device`; without one where it is."""
        moved: Any = loaded
        if hasattr(moved, "eval"):
            moved = moved.eval().requires_grad_(requires_grad=False)
        return moved if self.device is None else moved.to(self.device)

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch, after `prepare`; empty if it cannot.

        On a CPU the author promises it, and `mstar prove` checks it: see `rowwise_on_cpu` of an op. `GET /v1/models`
        shows the reason.
        """
        if self.is_on_cpu:
            return ""
        return f"the libraries of {self.device.type} devices choose by the size of a batch how they sum"

    @property
    def is_on_cpu(self) -> bool:
        """Whether its ops run on the CPU."""
        return self.device is None or self.device.type == "cpu"

    def memory_stats(self) -> dict[str, int]:
        """Memory usage counters, such as used pages. Override it when memory is limited."""
        return {}

    def restore(self, states: list[State]) -> None:
        """Swap evicted states back in, or raise OutOfPages. Override it if a state class `is_evictable`."""

    @classmethod
    def ops(cls) -> dict[str, Op]:
        """Ops of this component by name."""
        members = ((name, getattr(cls, name, None)) for name in dir(cls))
        return {name: member.__dict__["op"] for name, member in members if "op" in getattr(member, "__dict__", ())}

    @classmethod
    def state_kinds(cls) -> dict[str, type[State]]:
        """State classes that its ops use, by name."""
        kinds: dict[str, type[State]] = {KV.__name__: KV}
        for each_op in cls.ops().values():
            for hint in each_op.signature.params.values():
                if isinstance(hint.python, type) and issubclass(hint.python, State):
                    kinds[hint.python.__name__] = hint.python
        return kinds

    if not TYPE_CHECKING:  # it would hide a mistyped op from a static type checker

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property of its own failed: raise the error of the property
                return object.__getattribute__(self, name)
            known = self.ops()
            suggestion = suggest_name(name, known)
            if (tracer := context.tracer.get()) is not None and not name.startswith("_"):
                return tracer.missing(f"component `{self.name}` has no op `{name}`{suggestion}", known)
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}{suggestion}; its ops are {format_names(known)}"
            )
