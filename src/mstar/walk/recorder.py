"""The recorder: writes down the single steps of a walk while its code runs on symbols.

A mistake is noted and recording goes on with a symbol that no later check complains about, so an author sees all
problems of a walk at once. Streams and regions are the tracer's, which builds on this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mstar.errors import Problem, format_names, suggest_name
from mstar.graph import ir
from mstar.graph.types import BOOL, INT, ObjectType, StateType, Type, item_of
from mstar.walk.binding import Call, bind_call, fix_for_foreign_value
from mstar.walk.context import author_site
from mstar.walk.emissions import Emission
from mstar.walk.states import State
from mstar.walk.symbols import Missing, Scope, Symbol, describe, python_of, scope_of, value_of
from mstar.walk.types import fields_of

if TYPE_CHECKING:
    from mstar.walk.component import Component, Op

_LITERALS: dict[Any, Type] = {bool: BOOL, int: INT, float: ObjectType("float"), str: ObjectType("str")}
_NUMBER = re.compile(r"(?<=\w)[.#]\d+")


class TraceStopped(Exception):
    """Tracing cannot go on; the problems say why."""


class Recorder:
    """Bodies being written, the names in use, and the problems found."""

    def __init__(self, walk: str, site: str) -> None:
        self.walk = walk
        self.problems: list[Problem] = []
        self.is_over = False
        self.site_override: str | None = None
        """The author's line, where it is not the line of a running frame: a generator that has yielded."""
        self._scopes = [Scope("walk", site)]
        self._names: Counter[str] = Counter()
        self._dims: Counter[str] = Counter()
        self._branches: Counter[str] = Counter()
        self.has_branched = False
        self._reported: set[tuple[str, str]] = set()

    # ---------------------------------------------------------------- problems
    def problem(self, what: str, fix: str, site: str | None = None) -> Symbol:
        """Note a problem, and give a symbol to go on with."""
        found = Problem(site or self.site(), f"walk `{self.walk}`: {what}", fix)
        key = found.site, _NUMBER.sub("", what)  # Python's own loops repeat a mistake under other numbers
        if not self.is_over and key not in self._reported:
            self.problems.append(found)
            self._reported.add(key)
        return self.placeholder()

    def site(self) -> str:
        """The author's current line."""
        return self.site_override or author_site()

    def stop_tracing(self, symbol: Symbol, what: str, fix: str) -> NoReturn:
        """Note a problem after which this walk's code cannot be run further."""
        if value_of(symbol) is not None:
            self.problem(what, fix)
        self.is_over = True
        raise TraceStopped

    def missing(self, what: str, known: Iterable[str]) -> Missing:
        """A component or op that does not exist: note it, and give something that can be called."""
        self.problem(what, f"use one of {format_names(sorted(known))}")
        return Missing(self, None, self._scopes[-1])

    def branch(self, symbol: Symbol) -> bool:
        """`if` or `while` on a value. Both ways are followed once each; a loop on it ends."""
        site = self.site()
        if value_of(symbol) is not None:
            self.problem(
                f"a walk cannot branch on {describe(symbol)}: its value is not known until it is served",
                "to end a loop: s.stop_when(flag); to pick one of two: choose(flag, a, b);\n"
                "to decide per request: branch in route()",
            )
        self._branches[site] += 1
        self.has_branched = True
        if self._branches[site] > 8:
            self.is_over = True
            raise TraceStopped
        return self._branches[site] % 2 == 1

    # ---------------------------------------------------------------- values
    def new(self, type_: Type, name: str, python: Any = None) -> Symbol:
        """A symbol for a value of the current body. Names that repeat get a number."""
        return Symbol(self, ir.Value(self.unique(name), type_), self._scopes[-1], python)

    def unique(self, name: str) -> str:
        """This name, or it with a number when it was used before."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name]}"

    def dim(self, name: str) -> str:
        """A dimension that only this value has, named after what its op calls it."""
        self._dims[name] += 1
        return f"{name}#{self._dims[name]}"

    def placeholder(self) -> Symbol:
        """What to go on with where a value could not be made."""
        return Symbol(self, None, self._scopes[-1])

    def use(self, given: Any, role: str) -> ir.Value | None:
        """The graph's value behind what an author passed, or None if there is a problem with it."""
        if isinstance(given, Symbol):
            value = value_of(given)
            if value is not None and scope_of(given) not in self._scopes:
                if ("leak", value.name) not in self._reported:  # it is one mistake, however often it is used
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
        """Write a node into the current body."""
        self._scopes[-1].nodes.append(node)

    # ---------------------------------------------------------------- single nodes
    def call(self, component: Component, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op was called."""
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
        """Complain when a component is no attribute of the model, once for each."""
        if component.name == "?" and ("component", str(id(component))) not in self._reported:
            self._reported.add(("component", str(id(component))))
            what = f"this {type(component).__name__} is no attribute of the model, so it has no name to be placed by"
            self.problem(what, f"give each component an attribute of its own: self.part = {type(component).__name__}()")

    def new_state(self, component: Component, kind: type[State]) -> Symbol:
        """A component was asked for a state."""
        self.require_named(component)
        out = self.new(StateType(kind.__name__), kind.__name__.lower(), kind)
        self.add(ir.New(component.name, cast("ir.Value", value_of(out)), self.site()))
        return out

    def fork(self, symbol: Symbol) -> Symbol:
        """`.fork()` was called."""
        src = self.use(symbol, "what is forked")
        if src is None:
            return symbol
        if not isinstance(src.type, StateType):
            return self.problem(f"{describe(symbol)} is no state, so it cannot be forked", "fork states only")
        out = self.new(src.type, src.name.partition(".")[0], python_of(symbol))
        self.add(ir.Fork(src, cast("ir.Value", value_of(out)), self.site()))
        return out

    def take(self, symbol: Symbol, index: Any) -> Symbol:
        """`x[i]` was written."""
        src = self.use(symbol, "what is indexed")
        if src is None:
            return symbol
        item = item_of(src.type)
        if item is None:
            return self.problem(f"{describe(symbol)} has no first axis to index", "index a tensor or a list")
        at = self.use(index, "the index") if isinstance(index, Symbol | int) else None
        if at is None or at.type != INT:
            if isinstance(index, Symbol) and value_of(index) is None:
                return index
            got = "a slice" if isinstance(index, slice) else describe(index)
            return self.problem(f"{describe(symbol)} is indexed by {got}", "index by one int; slice inside an @op")
        out = self.new(item, src.name.partition(".")[0], python_of(symbol))
        self.add(ir.Take(src, at, cast("ir.Value", value_of(out)), self.site()))
        return out

    def attribute(self, symbol: Symbol, name: str) -> Any:
        """`x.name` was written: a field of a request's dataclass, or a tensor method that cannot be traced."""
        src = value_of(symbol)
        if src is None:
            return symbol
        known = fields_of(python_of(symbol)) if isinstance(src.type, ObjectType) else {}
        if name not in known:
            fix = "do tensor work inside a component's @op, and call that op here"
            if known:
                fix = f"use one of its fields: {format_names(known)}"
            self.problem(f"{describe(symbol)} has no `.{name}` in a walk{suggest_name(name, known)}", fix)
            return Missing(self, None, self._scopes[-1])
        self.use(symbol, "the object")
        out = self.new(known[name].type, name, known[name].python)
        self.add(ir.Field(src, name, cast("ir.Value", value_of(out)), self.site()))
        return out

    def emit(self, emission: Any) -> None:
        """The walk yielded."""
        if not isinstance(emission, Emission):
            got = describe(emission) if isinstance(emission, Symbol) else f"a {type(emission).__name__}"
            fix = "yield Text(x), Audio(x, rate=...), Image(x), Video(x, fps=...), Action(x, rate=...) or Latents(x)"
            if not isinstance(emission, Symbol) or value_of(emission) is not None:
                self.problem(f"a walk yielded {got}, which does not say what it is to the client", fix)
            return
        value = self.use(emission.value, f"what {type(emission).__name__} holds")
        for key, number in emission.clock:
            if not isinstance(cast("object", number), int | float):
                what = f"{type(emission).__name__}({key}=...) is {number!r}, not a number known in advance"
                if not isinstance(number, Symbol) or value_of(number) is not None:
                    self.problem(what, f"write the number itself: {key}=<number>")
                return
        if value is not None and not self.is_state(value, "emitted", "emit what an op makes of it"):
            self.add(ir.Emit(type(emission).__name__, value, emission.clock, self.site()))

    def is_state(self, value: ir.Value, done: str, fix: str) -> bool:
        """Complain when a state is used as a value."""
        if not isinstance(value.type, StateType):
            return False
        self.problem(f"%{value.name} is a state ({value.type.kind}) and cannot be {done}", fix)
        return True


def placeholder_results(recorder: Recorder, op: Op) -> Any:
    """What to go on with when a call has a problem: as many parts as it would have given."""
    try:
        outs = op.signature.outs
    except (TypeError, NameError):
        return recorder.placeholder()
    return tuple(recorder.placeholder() for _ in outs) if op.signature.gives_tuple else recorder.placeholder()


def _out_of_scope(symbol: Symbol, value: ir.Value, scopes: list[Scope]) -> tuple[str, str]:
    """What to say of a symbol whose body has ended."""
    made, name = scope_of(symbol), value.name.partition(".")[0]
    line = made.site.rpartition(":")[2]
    if isinstance(value.type, StateType):
        place = "an arm of choose()" if made.kind == "choice" else f"the {made.kind} at line {line}"
        return (
            f"{describe(symbol)} is made inside {place} and used when that body has ended",
            "make the state before it",
        )
    if any(scope.earlier is made for scope in scopes):
        return (
            f"{describe(symbol)} is made in one iteration and used in the next, but the {made.kind} does not carry it",
            f"s = loop(..., {name}=<its first value>), then assign s.{name} in the body",
        )
    if made.kind == "choice":
        return (
            f"{describe(symbol)} is made inside an arm of choose() and used outside it",
            "give it as the arm's result: x = choose(flag, lambda: ..., lambda: ...)",
        )
    if made.kind == "windows":
        return (
            f"{describe(symbol)} is made inside the windows at line {line} and used after them",
            "use it inside their body: emit it, or put it into a stream",
        )
    if made.kind == "each":
        return (
            f"{describe(symbol)} is made inside the each at line {line} and used after it",
            f"collect it: e.collect({name}=...) in the body; afterwards e.{name} is a list",
        )
    return (
        f"{describe(symbol)} is made inside the {made.kind} at line {line} and used after it ended",
        f"carry it, so that its last value has a name: s = loop(..., {name}=...)",
    )
