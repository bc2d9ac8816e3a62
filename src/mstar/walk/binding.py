"""Fitting the arguments of one traced call to what its op declares.

Named dimensions bind on first sight and must agree afterwards. A dimension that only a result names belongs to that
result alone (`S#1`): two results are never assumed to be of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mstar.graph import ir
from mstar.graph.types import Dim, ListType, ObjectType, StateType, TensorType, Type
from mstar.walk.symbols import Symbol, python_of, shown, value_of
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
        recorder.problem(f"{call.name}: {error}", f"call it as {call.name}{_shown_signature(call.op)}")
        return None
    binder = _Binder(recorder, call)
    args = [(name, binder.argument(name, value, signature.params[name])) for name, value in given.items()]
    fixed = {name for name, hint in signature.params.items() if hint.is_static}
    static = tuple((name, cast("ir.Literal", arg)) for name, arg in args if name in fixed)
    dynamic = tuple((name, arg) for name, arg in args if name not in fixed)
    if binder.failed:
        return None
    outs = tuple(recorder.new(binder.result(hint.type), call.op.name, hint.python) for hint in signature.outs)
    values = tuple(cast("ir.Value", value_of(out)) for out in outs)
    extends = tuple(binder.extends)
    node = ir.Call(call.component.name, call.op.name, dynamic, values, extends, static, recorder.site())
    return node, outs


def _shown_signature(op: Op) -> str:
    names = [name for name in list(op.call_signature.parameters)[1:] if name != op.signature.layout]
    return f"({', '.join(names)})"


class _Binder:
    """The dimensions bound so far in one call, and whether anything failed."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self.recorder = recorder
        self.call = call
        self.dims: dict[str, Dim] = {}
        self.extends: list[ir.Value] = []
        self.failed = False

    def fail(self, what: str, fix: str) -> None:
        self.recorder.problem(what, fix)
        self.failed = True

    def argument(self, name: str, given: Any, hint: Hint) -> ir.Arg:
        where = f"{self.call.name}({name}=...)"
        if isinstance(given, Symbol):
            return self.symbol(where, given, hint)
        literal = _literal(given)
        if literal is None and given is not None:
            what = f"{where} is a {type(given).__name__}, which is neither a value of this walk nor a literal"
            self.fail(what, "make it an input of the walk, or pass a bool, int, float, str or tuple of them")
        elif not hint.is_static and not fits(hint.type, ObjectType(type(given).__name__)):
            self.fail(f"{where} wants {hint.type}, got the constant {given!r}", "pass a value of that type")
        return given if literal is not None else None

    def symbol(self, where: str, given: Symbol, hint: Hint) -> ir.Arg:
        value = self.recorder.use(given, where)
        if value is None:
            self.failed = True
        elif hint.is_static:
            self.fail(f"{where} is static, but got {shown(given)}", "pass a constant, or drop Static from the op")
        elif not (self.is_kind(given, hint) if isinstance(hint.type, StateType) else fits(hint.type, value.type)):
            self.fail(f"{where} wants {hint.type}, got {shown(given)}", self.advice(hint.type))
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
            what = f"{where} wants {want}, {len(want.dims)} dimensions; got {shown(given)}, {len(got.dims)}"
            self.fail(what, "pass a value of that shape, or reshape it in an @op")
            return
        for wanted, has in zip(want.dims, got.dims, strict=True):
            if isinstance(wanted, str):
                if self.dims.setdefault(wanted, has) != has:
                    what = f"{where}: `{wanted}` is {self.dims[wanted]} in another argument but {has} here, {shown(given)}"
                    self.fail(what, "pass values that agree in that dimension")
            elif wanted != has:
                self.fail(f"{where} wants {want}, got {shown(given)}", "pass a value of that shape")
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

