"""Fitting the arguments of one traced call to what its op declares.

Named dimensions bind on first sight and must agree afterwards. A dimension that only a result names belongs to that
result alone (`S#1`): two results are never assumed to be of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mstar.graph import ir
from mstar.graph.types import Dim, ListType, ObjectType, StateType, TensorType, Type
from mstar.walk.states import State
from mstar.walk.symbols import Symbol, describe, python_of, value_of
from mstar.walk.types import Hint, fits

if TYPE_CHECKING:
    from mstar.walk.component import Component, Op
    from mstar.walk.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Call:
    """An op as the author called it."""

    component: Component
    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The op as a walk names it."""
        return f"{self.component.name}.{self.op.name}"


def bind_call(recorder: Recorder, call: Call) -> tuple[ir.Call, tuple[Symbol, ...]] | None:
    """The graph's node and the symbols of its results, or None when there are problems."""
    try:
        signature = call.op.signature
    except (TypeError, NameError) as error:
        code = call.op.body.__code__
        site = f"{code.co_filename}:{code.co_firstlineno}"
        fix = 'annotate each parameter and the result, such as x: Float32[Tensor, "N 64"]'
        recorder.problem(f"the types of op {call.name} cannot be read: {error}", fix, site)
        return None
    try:
        given = call.op.bind(call.component, call.args, call.kwargs)
    except TypeError as error:
        recorder.problem(f"{call.name}: {error}", f"call it as {call.name}{_format_signature(call.op)}")
        return None
    binder = _Binder(recorder, call)
    args = [(name, binder.argument(name, value, signature.params[name])) for name, value in given.items()]
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
    """What to do with an object that is neither a value of the walk nor a constant."""
    if given is None:
        return "pass a value; an op that is declared -> None gives none"
    if isinstance(given, State):
        return "make states inside the walk, or in route() as an input of the walk: self.lm.kv()"
    if isinstance(given, list | tuple) and any(isinstance(part, Symbol) for part in cast("list[Any]", given)):
        return "pass its parts one by one: a, b = ...; a list of them is what each(...).collect(x=...) gives"
    return "make it an input of the walk, or pass a bool, int, float or str (to an op, also a tuple of them)"


class _Binder:
    """The dimensions bound so far in one call, and whether anything failed."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self.recorder = recorder
        self.call = call
        self.dims: dict[str, Dim] = {}
        self.extends: list[ir.Value] = []
        self.failed = False
        self.misfits: dict[str, tuple[ir.Value, str, str]] = {}

    def fail(self, what: str, fix: str) -> None:
        self.recorder.problem(what, fix)
        self.failed = True

    def report(self) -> bool:
        """Say which arguments do not fit; whether anything failed. Arguments in the wrong order are one problem."""
        params = self.call.op.signature.params
        got = [value.type for value, _, _ in self.misfits.values()]
        if len(got) > 1 and all(any(fits(params[name].type, other) for other in got) for name in self.misfits):
            given = ", ".join(f"`{name}` got %{value.name}" for name, (value, _, _) in self.misfits.items())
            fix = f"call it as {self.call.name}{_format_signature(self.call.op)}"
            self.fail(f"{self.call.name}: these arguments are in the wrong order: {given}", fix)
        else:
            for _, what, fix in self.misfits.values():
                self.fail(what, fix)
        return self.failed

    def argument(self, name: str, given: Any, hint: Hint) -> ir.Arg:
        where = f"{self.call.name}({name}=...)"
        if isinstance(given, Symbol):
            return self.symbol(name, given, hint)
        literal = _literal(given)
        if literal is None and given is not None:
            what = f"{where} is a {type(given).__name__}, which is neither a value of this walk nor a literal"
            self.fail(what, fix_for_foreign_value(given))
        elif not hint.is_static and not fits(hint.type, ObjectType(type(given).__name__)):
            self.fail(f"{where} wants {hint.type}, got the constant {given!r}", self.advice(hint.type))
        return given if literal is not None else None

    def symbol(self, name: str, given: Symbol, hint: Hint) -> ir.Arg:
        where = f"{self.call.name}({name}=...)"
        value = self.recorder.use(given, where)
        if value is None:
            self.failed = True
        elif hint.is_static:
            self.fail(f"{where} is static, but got {describe(given)}", "pass a constant, or drop Static from the op")
        elif not (self.is_kind(given, hint) if isinstance(hint.type, StateType) else fits(hint.type, value.type)):
            self.misfits[name] = (value, f"{where} wants {hint.type}, got {describe(given)}", self.advice(hint.type))
        else:
            self.unify(where, hint.type, value.type, given)
            if isinstance(hint.type, StateType) and not hint.is_view:
                self.extends.append(value)
        return value

    def is_kind(self, given: Symbol, hint: Hint) -> bool:
        """Whether this is a state of the wanted kind, or of a kind derived from it."""
        kind = python_of(given)
        return isinstance(kind, type) and issubclass(kind, hint.python)

    def advice(self, want: Type) -> str:
        if isinstance(want, StateType):
            made = "kv()" if want.kind == "KV" else f"state({want.kind})"
            return f"make one with self.{self.call.component.name}.{made}, and pass that"
        return "pass a value of that type, or convert it in an @op"

    def unify(self, where: str, want: Type, got: Type, given: Symbol) -> None:
        if isinstance(want, ListType) and isinstance(got, ListType):
            self.unify(where, want.item, got.item, given)
        if not (isinstance(want, TensorType) and isinstance(got, TensorType)):
            return
        if len(want.dims) != len(got.dims):
            counts = f"{len(got.dims)} dimensions instead of {len(want.dims)}"
            what = f"{where} wants {want}, got {describe(given)}: {counts}"
            self.fail(what, "pass a value of that shape, or reshape it in an @op")
            return
        for wanted, has in zip(want.dims, got.dims, strict=True):
            if isinstance(wanted, str):
                if self.dims.setdefault(wanted, has) != has:
                    what = f"{where}: `{wanted}` is {self.dims[wanted]} in another argument but {has} here, {describe(given)}"
                    self.fail(what, "pass values that agree in that dimension")
            elif wanted != has:
                is_cut = isinstance(has, str) and has.startswith("W#")
                fix = "pass a value of that shape" + (": windows without context, first and flush" if is_cut else "")
                self.fail(f"{where} wants {want}, got {describe(given)}", fix)
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
