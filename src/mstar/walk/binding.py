"""Type check of a traced op call: match the arguments with the op's signature, and infer the types of its results.

A named dimension is bound by the first argument that has it and must agree in the others (unification). A dimension
that only a result has is a new size (`S#1`): two results are never assumed to have the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

from mstar.graph import ir
from mstar.graph.types import Dim, ListType, ObjectType, StateType, TensorType, Type
from mstar.walk.component import Component, Op
from mstar.walk.states import State
from mstar.walk.symbols import Symbol, describe, python_of, value_of
from mstar.walk.types import Hint, fits


class CallRecorder(Protocol):
    """The part of the recorder that the type check uses."""

    def problem(self, what: str, fix: str, site: str | None = None) -> Symbol:
        """Record a problem."""
        ...

    def site(self) -> str:
        """`file:line` of the author's current line."""
        ...

    def use(self, given: Any, role: str) -> ir.Value | None:
        """The graph value of an argument, or None after recording a problem."""
        ...

    def new(self, type_: Type, name: str, python: Any = None) -> Symbol:
        """Create a symbol in the current body."""
        ...

    def dim(self, name: str) -> str:
        """Create a dimension."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an op in author code."""

    component: Component
    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The op as `component.op`."""
        return f"{self.component.name}.{self.op.name}"


def bind_call(recorder: CallRecorder, call: Call) -> tuple[ir.Call, tuple[Symbol, ...]] | None:
    """The graph node and the symbols of its results, or None after recording problems."""
    try:
        signature = call.op.signature
    except (TypeError, NameError) as error:
        code = call.op.body.__code__
        site = f"{code.co_filename}:{code.co_firstlineno}"
        fix = 'annotate each parameter and the result, for example x: Float32[Tensor, "N 64"]'
        recorder.problem(f"op {call.name} has an invalid signature: {error}", fix, site)
        return None
    try:
        arguments = call.op.bind(call.component, call.args, call.kwargs)
    except TypeError as error:
        recorder.problem(f"{call.name}: {error}", f"call it as {call.name}{_format_signature(call.op)}")
        return None
    binder = _Binder(recorder, call)
    args = [(name, binder.argument(name, value, signature.params[name])) for name, value in arguments.items()]
    fixed = {name for name, hint in signature.params.items() if hint.is_static}
    static = tuple((name, cast("ir.Literal", arg)) for name, arg in args if name in fixed)
    dynamic = tuple((name, arg) for name, arg in args if name not in fixed)
    if binder.report():
        return None
    outs = tuple(recorder.new(binder.result(hint.type), call.op.name, hint.python) for hint in signature.outs)
    values = tuple(cast("ir.Value", value_of(out)) for out in outs)
    extends = tuple(binder.extends)
    node = ir.Call(call.component.name, call.op.name, dynamic, values, extends, static, recorder.site())
    return node, outs


def _format_signature(op: Op) -> str:
    params = list(op.call_signature.parameters.values())[1:]
    names = [str(p.replace(annotation=p.empty)) for p in params if p.name != op.signature.layout]
    return f"({', '.join(names)})"


def fix_for_foreign_value(given: Any) -> str:
    """The fix for an argument that is neither a value of the walk nor a constant."""
    if given is None:
        return "pass a value; an op declared -> None returns nothing"
    if isinstance(given, State):
        return "create the state inside the walk, or in route() and pass it as an input of the walk: self.lm.kv()"
    if isinstance(given, list | tuple) and any(isinstance(part, Symbol) for part in cast("list[Any]", given)):
        return "unpack it and pass the parts one by one: a, b = ...; to build a list, use each(...).collect(x=...)"
    return "make it an input of the walk, or pass a bool, int, float or str (to an op, also a tuple of them)"


class _Binder:
    """Bound dimensions and mismatched arguments of one call."""

    def __init__(self, recorder: CallRecorder, call: Call) -> None:
        self.recorder = recorder
        self.call = call
        self.dims: dict[str, Dim] = {}
        self.extends: list[ir.Value] = []
        self.failed = False
        self.mismatches: dict[str, tuple[ir.Value, str, str]] = {}

    def fail(self, what: str, fix: str) -> None:
        self.recorder.problem(what, fix)
        self.failed = True

    def report(self) -> bool:
        """Record the mismatches; return whether anything failed. Arguments in the wrong order are one problem."""
        params = self.call.op.signature.params
        types = [value.type for value, _, _ in self.mismatches.values()]
        if len(types) > 1 and all(any(fits(params[name].type, other) for other in types) for name in self.mismatches):
            swapped = ", ".join(f"`{name}` got %{value.name}" for name, (value, _, _) in self.mismatches.items())
            fix = f"call it as {self.call.name}{_format_signature(self.call.op)}"
            self.fail(f"{self.call.name}: arguments in the wrong order: {swapped}", fix)
        else:
            for _, what, fix in self.mismatches.values():
                self.fail(what, fix)
        return self.failed

    def argument(self, name: str, given: Any, hint: Hint) -> ir.Arg:
        where = f"{self.call.name}({name}=...)"
        if isinstance(given, Symbol):
            return self.symbol(name, given, hint)
        literal = _literal(given)
        if literal is None and given is not None:
            what = f"{where} is a {type(given).__name__}, not a value of this walk and not a constant"
            self.fail(what, fix_for_foreign_value(given))
        elif not hint.is_static and not fits(hint.type, ObjectType(type(given).__name__)):
            self.fail(f"{where} expects {hint.type}, got the constant {given!r}", self.fix_for(hint.type))
        return given if literal is not None else None

    def symbol(self, name: str, given: Symbol, hint: Hint) -> ir.Arg:
        where = f"{self.call.name}({name}=...)"
        value = self.recorder.use(given, where)
        if value is None:
            self.failed = True
        elif hint.is_static:
            what = f"{where} is declared Static, got the run-time value {describe(given)}"
            self.fail(what, "pass a constant, or remove Static from the op's signature")
        elif not (self.is_kind(given, hint) if isinstance(hint.type, StateType) else fits(hint.type, value.type)):
            what = f"{where} expects {hint.type}, got {describe(given)}"
            self.mismatches[name] = (value, what, self.fix_for(hint.type))
        else:
            self.unify(where, hint.type, value.type, given)
            if isinstance(hint.type, StateType) and not hint.is_view:
                self.extends.append(value)
        return value

    def is_kind(self, given: Symbol, hint: Hint) -> bool:
        """Whether this is a state of the declared class or a subclass of it."""
        kind = python_of(given)
        return isinstance(kind, type) and issubclass(kind, hint.python)

    def fix_for(self, expected: Type) -> str:
        if isinstance(expected, StateType):
            factory = "kv()" if expected.kind == "KV" else f"state({expected.kind})"
            return f"create one with self.{self.call.component.name}.{factory}, and pass that"
        return "pass a value of that type, or convert it in an @op"

    def unify(self, where: str, expected: Type, actual: Type, given: Symbol) -> None:
        if isinstance(expected, ListType) and isinstance(actual, ListType):
            self.unify(where, expected.item, actual.item, given)
        if not (isinstance(expected, TensorType) and isinstance(actual, TensorType)):
            return
        if len(expected.dims) != len(actual.dims):
            counts = f"{len(actual.dims)} dimensions instead of {len(expected.dims)}"
            what = f"{where} expects {expected}, got {describe(given)}: {counts}"
            self.fail(what, "pass a value of that shape, or reshape it in an @op")
            return
        for declared, size in zip(expected.dims, actual.dims, strict=True):
            if isinstance(declared, str):
                if self.dims.setdefault(declared, size) != size:
                    bound = f"dimension `{declared}` is {self.dims[declared]} in another argument"
                    what = f"{where}: {bound}, but {size} in {describe(given)}"
                    self.fail(what, "pass values with equal sizes in that dimension")
            elif declared != size:
                is_window = isinstance(size, str) and size.startswith("W#")
                advice = "pass a value of that shape"
                fix = f"{advice}: use windows without context, first and flush" if is_window else advice
                self.fail(f"{where} expects {expected}, got {describe(given)}", fix)
                return

    def result(self, type_: Type) -> Type:
        if isinstance(type_, ListType):
            return ListType(self.result(type_.item))
        if not isinstance(type_, TensorType):
            return type_
        return TensorType(type_.dtype, tuple(self.size(dim) for dim in type_.dims))

    def size(self, dim: Dim) -> Dim:
        if isinstance(dim, str) and dim not in self.dims:
            self.dims[dim] = self.recorder.dim(dim)
        return self.dims[dim] if isinstance(dim, str) else dim


def _literal(given: Any) -> ir.Literal:
    if isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, tuple):
        parts = cast("tuple[Any, ...]", given)
        return parts if all(part is None or _literal(part) is not None for part in parts) else None
    return None
