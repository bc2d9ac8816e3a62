"""Symbols: what stands for a value while a walk is traced.

A symbol can be passed to ops, streams, emissions, loops, and indexed. Whatever else Python can do with a value needs
the value itself, so it is reported as a problem that says where such code belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.graph import ir

if TYPE_CHECKING:
    from mstar.walk.recorder import Recorder


@dataclass(eq=False)
class Scope:
    """One body being traced. `earlier` is the same body one iteration before."""

    kind: str
    site: str
    earlier: Scope | None = None
    nodes: list[ir.Node] = field(default_factory=list[ir.Node])


_OP_FIX = "do it inside a component's @op, and call that op here"


class Symbol:
    """Stands for a value that will exist when the walk is served.

    Without a value it stands for one that could not be made: there is a problem already, and no use of it is another.
    """

    __slots__ = ("_python", "_scope", "_tracer", "_value")

    def __init__(self, tracer: Recorder, value: ir.Value | None, scope: Scope, python: Any = None) -> None:
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
            f"a walk cannot take {describe(self)} apart: how many parts it has is not known yet",
            "for step in loop(steps=...), for item in each(...), or an @op that gives a tuple",
        )

    def __repr__(self) -> str:
        return describe(self) if self._value is not None else "a value with a problem of its own"

    def fork(self) -> Any:
        """A fork of the state this stands for."""
        return self._tracer.fork(self)


class Missing(Symbol):
    """Stands for a component, an op or a tensor's method that does not exist, so that tracing can go on past it."""

    __slots__ = ()

    def __call__(self, *_args: Any, **_kwargs: Any) -> Symbol:
        """What it would have given does not exist either."""
        return self

    def fork(self) -> Symbol:
        """What does not exist has no forks."""
        return self


def describe(given: Any) -> str:
    """What an author passed, in a sentence: a value's name and type, or a constant."""
    value = value_of(given) if isinstance(given, Symbol) else None
    return f"%{value.name} ({value.type})" if value is not None else repr(given)


def value_of(symbol: Symbol) -> ir.Value | None:
    """The graph's value behind a symbol."""
    return symbol._value  # pyright: ignore[reportPrivateUsage]


def scope_of(symbol: Symbol) -> Scope:
    """The body a symbol was made in."""
    return symbol._scope  # pyright: ignore[reportPrivateUsage]


def python_of(symbol: Symbol) -> Any:
    """The Python class its annotation named."""
    return symbol._python  # pyright: ignore[reportPrivateUsage]


def _unsupported_operator(sign: str, fix: str = _OP_FIX) -> Any:
    def method(self: Symbol, *_: Any) -> Any:
        if value_of(self) is None:
            return self
        return self._tracer.problem(  # pyright: ignore[reportPrivateUsage]
            f"a walk cannot compute `{sign}` on {describe(self)}: its value is not known until it is served", fix
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
        Symbol, f"__{_name}__", _unsupported_operator(_sign, _OP_FIX + ";\nto decide per request: compare in route()")
    )
for _name, _sign in {
    "neg": "-", "pos": "+", "invert": "~", "abs": "abs()", "round": "round()",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _unsupported_operator(_sign))
Symbol.__hash__ = object.__hash__  # setting __eq__ after the class would otherwise leave it; keep identity


def _requires_value(what: str, fix: str) -> Any:
    def method(self: Symbol, *_: Any) -> Any:
        return self._tracer.stop_tracing(  # pyright: ignore[reportPrivateUsage]
            self, f"a walk cannot {what.format(describe(self))}: it is not known until it is served", fix
        )

    return method


_STEPS_FIX = "loop(steps=...) takes it as it is; for anything else, " + _OP_FIX
for _name in ("int", "float", "complex"):
    setattr(Symbol, f"__{_name}__", _requires_value(f"make a Python number of {{}} by {_name}()", _STEPS_FIX))
for _name, _what, _fix in (
    ("index", "count with {} by range(), or index a Python object with it", _STEPS_FIX),
    (
        "len",
        "ask for len() of {}",
        "for item in each(...) goes over the items of a list; for anything else, " + _OP_FIX,
    ),
    ("contains", "look into {} by `in`", _OP_FIX),
):
    setattr(Symbol, f"__{_name}__", _requires_value(_what, _fix))
