"""Symbolic values: placeholders for run-time values while a walk is traced.

A symbol can be passed to ops, streams, emissions and loops, and can be indexed. Every other Python operation needs the
value itself, so it is reported as a problem with a fix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from mstar.graph import ir


class SymbolRecorder(Protocol):
    """The part of the recorder that operations on symbols use."""

    def problem(self, what: str, fix: str, site: str | None = None) -> Symbol:
        """Record a problem, and return a symbol to continue with."""
        ...

    def stop_tracing(self, symbol: Symbol, what: str, fix: str) -> NoReturn:
        """Record a problem after which the walk's code cannot run further."""
        ...

    def branch(self, symbol: Symbol) -> bool:
        """Record `if` or `while` on a symbol."""
        ...

    def take(self, symbol: Symbol, index: Any) -> Symbol:
        """Record `x[i]`."""
        ...

    def attribute(self, symbol: Symbol, name: str) -> Any:
        """Record `x.name`."""
        ...

    def fork(self, symbol: Symbol) -> Symbol:
        """Record `x.fork()`."""
        ...


@dataclass(eq=False)
class Scope:
    """One body being traced. `earlier` is the same body in the previous iteration."""

    kind: str
    site: str
    earlier: Scope | None = None
    nodes: list[ir.Node] = field(default_factory=list[ir.Node])


_OP_FIX = "compute it in an @op of a component, and call that op here"


class Symbol:
    """Placeholder for a value that exists at run time.

    A symbol without a value is the result of a problem that is already recorded; using it is no further problem.
    """

    __slots__ = ("_python", "_scope", "_tracer", "_value")

    def __init__(self, tracer: SymbolRecorder, value: ir.Value | None, scope: Scope, python: Any = None) -> None:
        self._tracer = tracer
        self._value = value
        self._scope = scope
        self._python = python

    def __getitem__(self, index: Any) -> Any:
        return self._tracer.take(self, index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._tracer.attribute(self, name)

    def __bool__(self) -> bool:
        return self._tracer.branch(self)

    def __iter__(self) -> Any:
        return self._tracer.stop_tracing(
            self,
            f"a walk cannot iterate over or unpack {describe(self)}: its length is known only at run time",
            "use for step in loop(steps=...), for item in each(...), or an @op that returns a tuple",
        )

    def __repr__(self) -> str:
        return describe(self) if self._value is not None else "an invalid value"

    def fork(self) -> Any:
        """Fork a state."""
        return self._tracer.fork(self)


class Missing(Symbol):
    """Placeholder for a component, op or tensor method that does not exist, so that tracing can continue."""

    __slots__ = ()

    def __call__(self, *_args: Any, **_kwargs: Any) -> Symbol:
        """The result of the call is missing too."""
        return self

    def fork(self) -> Symbol:
        """The fork is missing too."""
        return self


def describe(given: Any) -> str:
    """An argument for an error message: the name and type of a value, or the repr of a constant."""
    value = value_of(given) if isinstance(given, Symbol) else None
    return f"%{value.name} ({value.type})" if value is not None else repr(given)


def value_of(symbol: Symbol) -> ir.Value | None:
    """The graph value of a symbol; None if it is invalid."""
    return symbol._value  # pyright: ignore[reportPrivateUsage]


def scope_of(symbol: Symbol) -> Scope:
    """The body in which a symbol was created."""
    return symbol._scope  # pyright: ignore[reportPrivateUsage]


def python_of(symbol: Symbol) -> Any:
    """The Python class of a symbol's annotation."""
    return symbol._python  # pyright: ignore[reportPrivateUsage]


def _unsupported_operator(sign: str, fix: str = _OP_FIX) -> Any:
    def method(self: Symbol, *_: Any) -> Any:
        if value_of(self) is None:
            return self
        return self._tracer.problem(  # pyright: ignore[reportPrivateUsage]
            f"a walk cannot compute `{sign}` on {describe(self)}: its value is known only at run time", fix
        )

    return method


for _name, _sign in {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _unsupported_operator(_sign))
    setattr(Symbol, f"__r{_name}__", _unsupported_operator(_sign))
for _name, _sign in {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}.items():  # fmt: skip
    setattr(
        Symbol, f"__{_name}__", _unsupported_operator(_sign, _OP_FIX + ";\nto decide per request, compare in route()")
    )
for _name, _sign in {
    "neg": "-", "pos": "+", "invert": "~", "abs": "abs()", "round": "round()",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _unsupported_operator(_sign))
Symbol.__hash__ = object.__hash__  # keep the identity hash although __eq__ is replaced


def _requires_value(what: str, fix: str) -> Any:
    def method(self: Symbol, *_: Any) -> Any:
        return self._tracer.stop_tracing(  # pyright: ignore[reportPrivateUsage]
            self, f"a walk cannot {what.format(describe(self))}: it is known only at run time", fix
        )

    return method


_STEPS_FIX = "pass it to loop(steps=...) directly; for anything else, " + _OP_FIX
for _name in ("int", "float", "complex"):
    setattr(Symbol, f"__{_name}__", _requires_value(f"convert {{}} with {_name}()", _STEPS_FIX))
for _name, _what, _fix in (
    ("index", "use {} in range() or as an index of a Python object", _STEPS_FIX),
    ("len", "take len() of {}", "iterate over a list with for item in each(...); for anything else, " + _OP_FIX),
    ("contains", "search {} with `in`", _OP_FIX),
):
    setattr(Symbol, f"__{_name}__", _requires_value(_what, _fix))
