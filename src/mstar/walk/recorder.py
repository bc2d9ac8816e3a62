"""Base of the tracer: records op calls, states, fields and emissions while a walk's code runs on symbols.

After a mistake, recording continues with an invalid symbol that causes no further problems, so an author sees all
problems of a walk at once. Streams, loops and other regions are recorded by the subclass in `mstar.walk.tracer`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from mstar.errors import Problem, format_names, suggest_name
from mstar.graph import ir
from mstar.graph.types import BOOL, INT, ObjectType, StateType, Type, item_of
from mstar.walk.binding import Call, bind_call, fix_for_foreign_value
from mstar.walk.component import Component, Op
from mstar.walk.context import author_site
from mstar.walk.emissions import Emission
from mstar.walk.states import State
from mstar.walk.symbols import Missing, Scope, Symbol, describe, python_of, scope_of, value_of
from mstar.walk.types import fields_of
from mstar.walk.undecorated import current_frames, find_undecorated

_LITERALS: dict[Any, Type] = {bool: BOOL, int: INT, float: ObjectType("float"), str: ObjectType("str")}
_NUMBER = re.compile(r"(?<=\w)[.#]\d+")


class TraceStopped(Exception):
    """Tracing cannot continue; the reason is in the recorded problems."""


class Recorder:
    """State of a trace: open bodies, names in use, and recorded problems."""

    def __init__(self, walk: str, site: str) -> None:
        self.walk = walk
        self.problems: list[Problem] = []
        self.is_over = False
        self.site_override: str | None = None
        """Site to report instead of the running frame, for example of a generator that has yielded."""
        self._scopes = [Scope("walk", site)]
        self._names: Counter[str] = Counter()
        self._dims: Counter[str] = Counter()
        self._branches: Counter[str] = Counter()
        self.has_branched = False
        self._reported: set[tuple[str, str]] = set()

    # ---------------------------------------------------------------- problems
    def problem(self, what: str, fix: str, site: str | None = None) -> Symbol:
        """Record a problem, and return an invalid symbol to continue with."""
        if site is None and (call := find_undecorated(current_frames())) is not None:
            what, fix, site = call.what, call.fix, call.site
        problem = Problem(site or self.site(), f"walk `{self.walk}`: {what}", fix)
        key = problem.site, _NUMBER.sub("", what)  # a Python loop repeats a mistake with other value numbers
        if not self.is_over and key not in self._reported:
            self.problems.append(problem)
            self._reported.add(key)
        return self.placeholder()

    def site(self) -> str:
        """The author's current line."""
        return self.site_override or author_site()

    def stop_tracing(self, symbol: Symbol, what: str, fix: str) -> NoReturn:
        """Record a problem after which this walk's code cannot run further."""
        if value_of(symbol) is not None:
            self.problem(what, fix)
        self.is_over = True
        raise TraceStopped

    def missing(self, what: str, known: Iterable[str]) -> Missing:
        """Record the use of a component or op that does not exist, and return a callable placeholder."""
        self.problem(what, f"use one of {format_names(sorted(known))}")
        return Missing(self, None, self._scopes[-1])

    def branch(self, symbol: Symbol) -> bool:
        """Record `if` or `while` on a value. Both branches are followed once each, so that a while loop ends."""
        site = self.site()
        if value_of(symbol) is not None:
            self.problem(
                f"a walk cannot branch on {describe(symbol)}: its value is known only at run time",
                "to end a loop, use s.stop_when(flag); to select one of two values, use choose(flag, a, b);\n"
                "to decide per request, branch in route()",
            )
        self._branches[site] += 1
        self.has_branched = True
        if self._branches[site] > 8:
            self.is_over = True
            raise TraceStopped
        return self._branches[site] % 2 == 1

    # ---------------------------------------------------------------- values
    def new(self, type_: Type, name: str, python: Any = None) -> Symbol:
        """Create a symbol in the current body. A repeated name gets a number."""
        return Symbol(self, ir.Value(self.unique(name), type_), self._scopes[-1], python)

    def unique(self, name: str) -> str:
        """This name, with a number if it is in use."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name]}"

    def dim(self, name: str) -> str:
        """Create a dimension of unknown size, named after the dimension in the op's signature."""
        self._dims[name] += 1
        return f"{name}#{self._dims[name]}"

    def placeholder(self) -> Symbol:
        """An invalid symbol, to continue with after a problem."""
        return Symbol(self, None, self._scopes[-1])

    def use(self, given: Any, role: str) -> ir.Value | None:
        """The graph value of an argument, or None after recording a problem. Constants become nodes."""
        if isinstance(given, Symbol):
            value = value_of(given)
            if value is not None and scope_of(given) not in self._scopes:
                if ("leak", value.name) not in self._reported:  # one problem, regardless of the number of uses
                    self.problem(*_out_of_scope(given, value, self._scopes))
                self._reported.add(("leak", value.name))
                return None
            return value
        type_ = _LITERALS.get(cast("Any", type(given)))
        if type_ is None:
            self.problem(
                f"{role} is a {type(given).__name__}, which is not a value of this walk", fix_for_foreign_value(given)
            )
            return None
        out = ir.Value(self.unique("const"), type_)
        self.add(ir.Const(given, out, self.site()))
        return out

    def add(self, node: ir.Node) -> None:
        """Append a node to the current body."""
        self._scopes[-1].nodes.append(node)

    # ---------------------------------------------------------------- single nodes
    def call(self, component: Component, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an op."""
        self.require_named(component)
        bound = bind_call(self, Call(component, op, args, kwargs))
        if bound is None:
            return placeholder_results(self, op)
        node, outs = bound
        self.add(node)
        if op.signature.gives_tuple:
            return outs
        return outs[0] if outs else None

    def require_named(self, component: Component) -> None:
        """Record a problem, once per component, if it is not an attribute of the model."""
        if component.name == "?" and ("component", str(id(component))) not in self._reported:
            self._reported.add(("component", str(id(component))))
            kind = type(component).__name__
            what = f"this {kind} is not an attribute of the model, so it has no name and cannot be placed"
            self.problem(what, f"assign each component to its own attribute: self.part = {kind}()")

    def new_state(self, component: Component, kind: type[State]) -> Symbol:
        """Record the creation of a state."""
        self.require_named(component)
        out = self.new(StateType(kind.__name__), kind.__name__.lower(), kind)
        self.add(ir.New(component.name, cast("ir.Value", value_of(out)), self.site()))
        return out

    def fork(self, symbol: Symbol) -> Symbol:
        """Record `x.fork()`."""
        src = self.use(symbol, "the state to fork")
        if src is None:
            return symbol
        if not isinstance(src.type, StateType):
            return self.problem(f"{describe(symbol)} is not a state and cannot be forked", "call fork() on a state")
        out = self.new(src.type, src.name.partition(".")[0], python_of(symbol))
        self.add(ir.Fork(src, cast("ir.Value", value_of(out)), self.site()))
        return out

    def take(self, symbol: Symbol, index: Any) -> Symbol:
        """Record `x[i]`."""
        src = self.use(symbol, "the value to index")
        if src is None:
            return symbol
        item = item_of(src.type)
        if item is None:
            return self.problem(f"{describe(symbol)} cannot be indexed", "index a tensor or a list")
        at = self.use(index, "the index") if isinstance(index, Symbol | int) else None
        if at is None or at.type != INT:
            if isinstance(index, Symbol) and value_of(index) is None:
                return index
            kind = "a slice" if isinstance(index, slice) else describe(index)
            fix = "use one int as the index; slice inside an @op"
            return self.problem(f"{describe(symbol)} cannot be indexed by {kind} in a walk", fix)
        out = self.new(item, src.name.partition(".")[0], python_of(symbol))
        self.add(ir.Take(src, at, cast("ir.Value", value_of(out)), self.site()))
        return out

    def attribute(self, symbol: Symbol, name: str) -> Any:
        """Record `x.name`: a field of a dataclass, or a problem for any other attribute."""
        src = value_of(symbol)
        if src is None:
            return symbol
        known = fields_of(python_of(symbol)) if isinstance(src.type, ObjectType) else {}
        if name not in known:
            fix = "use tensor attributes inside an @op of a component, and call that op here"
            if known:
                fix = f"use one of its fields: {format_names(known)}"
            self.problem(f"{describe(symbol)} has no attribute `{name}` in a walk{suggest_name(name, known)}", fix)
            return Missing(self, None, self._scopes[-1])
        self.use(symbol, "the object")
        out = self.new(known[name].type, name, known[name].python)
        self.add(ir.Field(src, name, cast("ir.Value", value_of(out)), self.site()))
        return out

    def emit(self, emission: Any) -> None:
        """Record the emission that the walk yielded."""
        if not isinstance(emission, Emission):
            yielded = describe(emission) if isinstance(emission, Symbol) else f"a {type(emission).__name__}"
            fix = (
                "yield Text(x), Audio(x, rate=...), WordTimestamps(x), Image(x), Video(x, fps=...), "
                "Action(x, rate=...) or Latents(x)"
            )
            if not isinstance(emission, Symbol) or value_of(emission) is not None:
                self.problem(f"a walk yielded {yielded}, which is not an emission", fix)
            return
        value = self.use(emission.value, f"the value of {type(emission).__name__}")
        for key, number in emission.clock:
            if not isinstance(cast("object", number), int | float):
                what = f"{type(emission).__name__}({key}=...) is {number!r}, not a constant number"
                if not isinstance(number, Symbol) or value_of(number) is not None:
                    self.problem(what, f"write a constant: {key}=<number>")
                return
        if value is not None and not self.is_state(value, "emitted", "emit the result of an op that reads it"):
            self.add(ir.Emit(type(emission).__name__, value, emission.clock, self.site()))

    def is_state(self, value: ir.Value, done: str, fix: str) -> bool:
        """Record a problem and return True if this value is a state."""
        if not isinstance(value.type, StateType):
            return False
        self.problem(f"%{value.name} is a state ({value.type.kind}) and cannot be {done}", fix)
        return True


def placeholder_results(recorder: Recorder, op: Op) -> Any:
    """Invalid results of a call with a problem, in the number that its signature declares."""
    try:
        outs = op.signature.outs
    except (TypeError, NameError):
        return recorder.placeholder()
    return tuple(recorder.placeholder() for _ in outs) if op.signature.gives_tuple else recorder.placeholder()


def _out_of_scope(symbol: Symbol, value: ir.Value, scopes: list[Scope]) -> tuple[str, str]:
    """Problem and fix for a symbol that is used outside the body that created it."""
    origin, name = scope_of(symbol), value.name.partition(".")[0]
    line = origin.site.rpartition(":")[2]
    place = "an arm of choose()" if origin.kind == "choice" else f"the {origin.kind} at line {line}"
    problem = f"{describe(symbol)} is created inside {place} and used outside it"
    if isinstance(value.type, StateType):
        kind = "choose()" if origin.kind == "choice" else origin.kind
        return problem, f"create the state before the {kind}"
    if any(scope.earlier is origin for scope in scopes):
        return (
            f"{describe(symbol)} is created in one iteration and used in the next, but the {origin.kind} "
            "does not carry it",
            f"s = loop(..., {name}=<initial value>), then assign s.{name} in the body",
        )
    if origin.kind == "choice":
        return problem, "return it from both arms: x = choose(flag, lambda: ..., lambda: ...)"
    if origin.kind == "windows":
        return problem, "use it inside the body: emit it, or put it into a stream"
    if origin.kind == "each":
        return problem, f"collect it in the body with e.collect({name}=...), then use the list e.{name}"
    return problem, f"carry it: s = loop(..., {name}=<initial value>); after the loop, s.{name} is its last value"
