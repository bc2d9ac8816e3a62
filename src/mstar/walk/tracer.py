"""Tracer: runs a walk's code once on symbolic values and records it as a graph (as torch.fx and JAX do).

This module records streams and regions; single nodes are recorded by the base class in `mstar.walk.recorder`. Each loop
body is traced twice: the first pass is recorded, the second only detects values that leak from one iteration into the
next. So a `print` in a body is executed twice.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
import typing
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

from mstar.errors import Problem
from mstar.graph import ir
from mstar.graph.check import check
from mstar.graph.overlap import check_overlap
from mstar.graph.types import INT, ListType, ObjectType, Type, accepts, is_flag, item_of, merged_type, stacked_type
from mstar.walk import context
from mstar.walk.context import author_site, is_author_frame
from mstar.walk.control import Stream, arm
from mstar.walk.emissions import Emission
from mstar.walk.recorder import Recorder, TraceStopped
from mstar.walk.symbols import Scope, Symbol, describe, python_of, value_of
from mstar.walk.types import UnknownHint, read_hint
from mstar.walk.undecorated import find_undecorated

if TYPE_CHECKING:
    from mstar.walk.control import each, windows


class Tracer(Recorder):
    """Recorder of one walk, with streams and regions."""

    def __init__(self, walk: str, site: str) -> None:
        super().__init__(walk, site)
        self._streams: dict[Stream, tuple[str, Scope]] = {}
        self._items: dict[str, Type] = {}
        self._invalid_streams: set[str] = set()
        """Streams with an invalid item."""
        self.early_exit: tuple[str, str, str] | None = None
        """Site of a body that was left early, with the problem and fix to report unless an exception is the cause."""

    # ---------------------------------------------------------------- streams
    def open(self, stream: Stream) -> None:
        """Record the creation of a stream."""
        name = self.unique(stream.name)
        self._streams[stream] = (name, self._scopes[-1])
        self.add(ir.Open(name, ObjectType("?"), author_site()))  # `put` determines its type

    def _stream(self, stream: Stream) -> str | None:
        if stream not in self._streams:
            self.problem(f"stream `{stream.name}` was created outside this walk", "create the Stream inside the walk")
            return None
        name, scope = self._streams[stream]
        if scope not in self._scopes:
            what = f"stream ~{name} was created inside a {scope.kind} and is used outside it"
            self.problem(what, f"create the Stream before the {scope.kind}")
            return None
        return name

    def put(self, stream: Stream, given: Any) -> None:
        """Record `stream.put(x)`."""
        name, value = self._stream(stream), self.use(given, "the value to put")
        fix = "put the result of an op that reads it"
        if name is None or value is None or self.is_state(value, "put into a stream", fix):
            self._invalid_streams.add(name or "")
            return
        item = merged_type(self._items.setdefault(name, value.type), value.type, self.dim)
        if item is None:
            what = f"stream ~{name} has items of type {self._items[name]}, but %{value.name} is {value.type}"
            self.problem(what, "put values of one type into a stream; use a second stream for the other type")
        self._items[name] = item or self._items[name]
        self.add(ir.Put(name, value, author_site()))

    def get(self, stream: Stream, default: Any) -> Any:
        """Record `stream.get(default)`."""
        name, value = self._stream(stream), self.use(default, "the default")
        current = self._item_type(name)
        if name is None or value is None or current is None:
            return self.placeholder()
        item = merged_type(current, value.type, self.dim)
        if item is None:
            fix = "pass a default of the type of the stream's items"
            return self.problem(f"stream ~{name} has items of type {current}, but the default is {value.type}", fix)
        self._items[name] = item
        out = self.new(item, name, python_of(default) if isinstance(default, Symbol) else None)
        self.add(ir.Get(name, value, cast("ir.Value", value_of(out)), author_site()))
        return out

    def _item_type(self, name: str | None) -> Type | None:
        if name is not None and name not in self._items and name not in self._invalid_streams:
            what = f"stream ~{name} is read before anything is put into it"
            self.problem(what, f"move the code that reads the stream after the code that calls {name}.put(value)")
        return self._items.get(name) if name is not None else None

    # ---------------------------------------------------------------- regions
    def _open_body(self, kind: str, site: str, earlier: Scope | None = None) -> Scope:
        self._scopes.append(Scope(kind, site, earlier))
        return self._scopes[-1]

    def close_body(self) -> tuple[ir.Node, ...]:
        """Close the current body; return its nodes, with the item types of streams filled in."""
        return tuple(
            ir.Open(node.stream, self._items.get(node.stream, node.item), node.site)
            if isinstance(node, ir.Open)
            else node
            for node in self._scopes.pop().nodes
        )

    def _trace_passes(self, kind: str, site: str, widen: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Trace a body twice; yields True for the pass that is recorded, whose body is current again afterwards.

        The recorded pass is repeated while the types of the carried values widen.
        """
        start = self._names.copy(), self._dims.copy()
        kept = self._open_body(kind, site)
        yield True
        self._scopes.pop()
        while widen():
            self._names = start[0].copy()
            start = self._names.copy(), self._dims.copy()
            kept = self._open_body(kind, site)
            yield True
            self._scopes.pop()
        after = self._names, self._dims
        self._names, self._dims = start[0].copy(), start[1].copy()  # equal names: problems are reported once
        again = self._open_body(kind, site, earlier=kept)
        yield False
        self._scopes.pop()
        self._names, self._dims = after
        if [type(node) for node in again.nodes] != [type(node) for node in kept.nodes] and not self.problems:
            what = f"two iterations of this {kind} record different ops"
            self.problem(what, "call the same ops in every iteration; put what differs into the carry or an @op", site)
        self._scopes.append(kept)

    def _body(self, kind: str, region: dict[str, Any], item: Symbol) -> Iterator[Any]:
        """Yield the loop variable to the author's body, and detect when the body is left early."""
        region["_is_open"] = True
        try:
            yield item
        except GeneratorExit:
            fix = "process every item, and skip unwanted ones inside an @op"
            if kind == "loop":
                fix = "to end the loop after an iteration, use s.stop_when(flag)"
            what = f"break or return in the body of this {kind}"
            self.early_exit = self.early_exit or (author_site(), what, fix)
            self.is_over = True
            raise
        finally:
            region["_is_open"] = False

    def loop(self, region: dict[str, Any]) -> Iterator[Any]:
        """Trace `for step in s` over a loop."""
        site = author_site()
        inits: dict[str, ir.Value] = {}
        python: dict[str, Any] = {}
        with _reporting_at(self, region["_sites"]["loop"]):
            steps = self._steps(region["_steps"])
            for name in region["_names"]:
                value = self.use(region[name], f"loop({name}=...)")
                fix = "use the state directly in the body; fork() it first if the loop needs a copy"
                if value is not None and not self.is_state(value, "carried by a loop", fix):
                    inits[name] = value
                    python[name] = python_of(region[name]) if isinstance(region[name], Symbol) else None
        types = {name: value.type for name, value in inits.items()}
        inner: dict[str, Symbol] = {}
        ends: tuple[dict[str, ir.Value], dict[str, ir.Value], list[ir.Value]] = ({}, {}, [])
        step = self.placeholder()

        def widen() -> bool:
            """Give a carry its own dimension if its initial and next values have different run-time sizes."""
            changed = {
                name: value.type for name, value in ends[0].items() if types[name] == inits[name].type != value.type
            }
            types.update({name: merged_type(types[name], type_, self.dim) or type_ for name, type_ in changed.items()})
            return bool(changed)

        for is_kept in self._trace_passes("loop", site, widen):
            this = {name: self.new(type_, name, python[name]) for name, type_ in types.items()}
            index = self.new(INT, "step", int)
            failed = {name: self.placeholder() for name in region["_names"] if name not in inits}
            region.update(this | failed, _stops=[], _kept={})
            yield from self._body("loop", region, index)
            result = self._nexts(region, types), self._kept(region["_kept"], region["_sites"]), self._flags(region)
            if is_kept:
                inner, step, ends = this, index, result
        body = self.close_body()
        outs = {name: self.new(type_, name, python[name]) for name, type_ in types.items()}
        carry = tuple(
            ir.Carry(name, init, _value(inner[name]), ends[0][name], _value(outs[name]))
            for name, init in inits.items()
            if name in ends[0]
        )
        collect, lists = self._lists(ends[1])
        failed = {name: self.placeholder() for name in region["_kept"] if name not in lists}
        region.update(outs, _lists=lists | failed)
        self.add(ir.Loop(steps, _value(step), carry, collect, tuple(ends[2]), body, site))

    def _kept(self, kept: dict[str, Any], sites: dict[str, str]) -> dict[str, ir.Value]:
        """The values that a body collects."""
        collected: dict[str, ir.Value] = {}
        for name, given in kept.items():
            with _reporting_at(self, sites[f"collect {name}"]):
                value = self.use(given, f"collect({name}=...)")
                if value is not None and not self.is_state(value, "collected", "use states inside the body only"):
                    collected[name] = value
        return collected

    def _lists(self, kept: dict[str, ir.Value]) -> tuple[tuple[ir.Collect, ...], dict[str, Symbol]]:
        """The lists of collected values after the region."""
        lists = {name: self.new(ListType(value.type), name) for name, value in kept.items()}
        return tuple(ir.Collect(name, value, _value(lists[name])) for name, value in kept.items()), lists

    def _steps(self, given: Any) -> ir.Value | int:
        if type(given) is int:
            return given
        value = self.use(given, "loop(steps=...)")
        if value is not None and value.type != INT:
            self.problem(f"loop(steps=...) expects an int, got {describe(given)}", "pass an int or a value of type int")
        return value if value is not None else 0

    def _nexts(self, region: dict[str, Any], types: dict[str, Type]) -> dict[str, ir.Value]:
        nexts: dict[str, ir.Value] = {}
        for name, type_ in types.items():
            with _reporting_at(self, region["_sites"].get(name)):
                value = self.use(region[name], f"s.{name}")
                if value is not None and not accepts(type_, value.type):
                    what = f"the loop carries `{name}` as {type_}, but an iteration assigns {value.type}"
                    self.problem(what, "assign a value of the same dtype and shape; convert it in an @op")
                elif value is not None:
                    nexts[name] = value
        return nexts

    def _flags(self, region: dict[str, Any]) -> list[ir.Value]:
        flags: list[ir.Value | None] = []
        for number, given in enumerate(region["_stops"], 1):
            with _reporting_at(self, region["_sites"][f"stop {number}"]):
                flags.append(self._flag(given, "stop_when(...)"))
        return [flag for flag in flags if flag is not None]

    def _flag(self, given: Any, role: str) -> ir.Value | None:
        value = self.use(given, role)
        if value is not None and not is_flag(value.type):
            fix = 'pass the result of an @op that returns bool or Bool[Tensor, ""]'
            self.problem(f"{role} expects a bool, got {describe(given)}", fix)
            return None
        return value

    def windows(self, region: windows) -> Iterator[Any]:
        """Trace `for window in windows(stream, ...)`."""
        site = author_site()
        if not (1 <= region.stride <= region.size and 1 <= region.first <= region.size):
            sizes = f"size={region.size}, stride={region.stride}, first={region.first} (size includes context)"
            fix = "use 1 <= stride <= size and 1 <= first <= size"
            self.problem(f"these windows skip items or never fill: {sizes}", fix, region.site)
        name = self._stream(region.stream)
        item_type = self._item_type(name)
        is_uniform = region.first == region.size and not region.flush
        size = region.size if is_uniform else self.dim("W")
        item = fresh = self.placeholder()
        for is_kept in self._trace_passes("windows", site):
            this = self.new(stacked_type(item_type, size), "window") if item_type is not None else self.placeholder()
            count = self.new(INT, "fresh", int)
            region.fresh = cast("int", count)
            yield from self._body("windows", vars(region), this)
            if is_kept:
                item, fresh = this, count
        body = self.close_body()
        if name is not None and item_type is not None:
            numbers = (region.size, region.stride, region.first, region.flush)
            self.add(ir.Windows(name, _value(item), _value(fresh), *numbers, body, site))

    def each(self, region: each) -> Iterator[Any]:
        """Trace `for item in each(items)`."""
        site = author_site()
        sites = vars(region)["_sites"]
        with _reporting_at(self, sites["each"]):
            items = self.use(region.items, "each(...)")
            item_type = item_of(items.type) if items is not None else None
            if items is not None and item_type is None:
                what = f"each(...) expects a list or a tensor with a first axis, got {describe(region.items)}"
                self.problem(what, "pass a list, or a tensor whose first axis is the items")
        item = index = self.placeholder()
        kept: dict[str, ir.Value] = {}
        for is_kept in self._trace_passes("each", site):
            this = self.new(item_type, "item", python_of(region.items)) if item_type else self.placeholder()
            at = self.new(INT, "index", int)
            region.index, region.kept = cast("int", at), {}
            yield from self._body("each", vars(region), this)
            result = self._kept(region.kept, sites)
            if is_kept:
                item, index, kept = this, at, result
        body = self.close_body()
        collect, lists = self._lists(kept)
        region.lists = lists | {name: self.placeholder() for name in region.kept if name not in lists}
        if items is not None and item_type is not None:
            self.add(ir.Each(items, _value(item), _value(index), collect, body, site))

    def choose(self, flag: Any, then: Any, otherwise: Any) -> Any:
        """Trace both arms of `choose(flag, a, b)`."""
        site = author_site()
        flags = self._flag(flag, "choose(flag, ...)")
        arms: list[ir.Arm] = []
        shape: list[Any] = []
        for given in (then, otherwise):
            self._open_body("choice", site)
            result = arm(given)
            shape.append(result)
            values = [self.use(part, "the result of an arm") for part in _parts(result)]
            arms.append(ir.Arm(self.close_body(), tuple(value for value in values if value is not None)))
        kinds = [[value.type for value in each_arm.results] for each_arm in arms]
        expected = [len(_parts(result)) for result in shape]
        if flags is None or [len(types) for types in kinds] != expected:
            return _shaped_like(shape[0], [self.placeholder() for _ in _parts(shape[0])])
        types = [merged_type(one, other, self.dim) for one, other in zip(kinds[0], kinds[1], strict=False)]
        if len(kinds[0]) != len(kinds[1]) or None in types:
            results = " and ".join("(" + ", ".join(map(str, types)) + ")" for types in kinds)
            what = f"the arms of choose() return different types: {results}"
            failed = self.problem(what, "return the same number of values, of the same types, from both arms")
            return _shaped_like(shape[0], [failed for _ in _parts(shape[0])])
        fix = "use states inside the arms only"
        if any(self.is_state(value, "the result of an arm", fix) for value in arms[0].results):
            return _shaped_like(shape[0], [self.placeholder() for _ in _parts(shape[0])])
        named = zip(types, arms[0].results, strict=True)
        outs = [self.new(type_, value.name.partition(".")[0]) for type_, value in named if type_ is not None]
        self.add(ir.Choose(flags, arms[0], arms[1], tuple(map(_value, outs)), site))
        return _shaped_like(shape[0], outs)


@contextlib.contextmanager
def _reporting_at(tracer: Tracer, site: str | None) -> Generator[None]:
    """Report problems at another line of the author."""
    before, tracer.site_override = tracer.site_override, site
    try:
        yield
    finally:
        tracer.site_override = before


def _shaped_like(shape: Any, parts: list[Symbol]) -> Any:
    if shape is None:
        return None
    return tuple(parts) if isinstance(shape, tuple) else parts[0]


def _value(symbol: Symbol) -> ir.Value:
    return value_of(symbol) or ir.Value("?", ObjectType("?"))


def _parts(result: Any) -> tuple[Any, ...]:
    if result is None:
        return ()
    return cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,)


def trace(function: Callable[..., Any], model: Any) -> tuple[ir.Walk, list[Problem]]:
    """Trace one walk of a model; return its graph and all problems."""
    code = function.__code__
    name, site = function.__name__, f"{code.co_filename}:{code.co_firstlineno}"
    tracer = Tracer(name, site)
    inputs = _inputs(tracer, function, site)
    outputs: tuple[ir.Value, ...] = ()
    is_tuple = False
    token = context.tracer.set(tracer)
    try:
        outputs, is_tuple = _run(tracer, function, model, inputs)
    except Exception as error:  # noqa: BLE001 - any exception of the author's code is a problem of the walk
        _report_exception(tracer, error, site)
    finally:
        context.tracer.reset(token)
    if tracer.early_exit is not None and not tracer.has_branched:
        where, what, fix = tracer.early_exit
        tracer.is_over = False
        tracer.problem(what, fix, where)
    tracer.is_over = True
    values = tuple(value for value in map(value_of, inputs.values()) if value is not None)
    graph = ir.Walk(name, values, tracer.close_body(), outputs, is_tuple, site)
    if tracer.problems:
        return graph, sorted(tracer.problems + check_overlap(graph, is_whole=False), key=_line)
    return graph, check(graph)


def _line(problem: Problem) -> tuple[str, int]:
    path, _, line = problem.site.rpartition(":")
    return path, int(line)


def _report_exception(tracer: Tracer, error: Exception, site: str) -> None:
    """Record the exception that the author's code raised as a problem."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_author_frame(frame)]
    undecorated = find_undecorated(frames)
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
    if tracer.early_exit is not None and tracer.early_exit[0] in lines:  # this exception left the body
        tracer.early_exit, tracer.is_over = None, False
    if undecorated is not None and not isinstance(error, TraceStopped):
        tracer.problem(undecorated.what, undecorated.fix, undecorated.site)
    elif not isinstance(error, TraceStopped):
        fix = (
            "correct this line; a walk is traced once at startup on symbols,\n"
            "which can be passed to ops, loops, streams and emissions only"
        )
        tracer.problem(f"{type(error).__name__}: {error}", fix, lines[-1] if lines else site)


def _inputs(tracer: Tracer, function: Callable[..., Any], site: str) -> dict[str, Symbol]:
    inputs: dict[str, Symbol] = {}
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        hints = None
        fix = "import it at the top of the file" if isinstance(error, NameError) else "correct the annotation"
        tracer.problem(f"invalid annotation: {error}", fix, site)
    for name in list(inspect.signature(function).parameters)[1:]:
        try:
            hint = read_hint((hints or {})[name])
            inputs[name] = tracer.new(hint.type, name, hint.python)
        except (KeyError, UnknownHint) as error:
            inputs[name] = tracer.placeholder()
            if hints is not None:
                reason = "has no annotation" if isinstance(error, KeyError) else f"has an unsupported type: {error}"
                fix = f'annotate it, for example {name}: Int64[Tensor, "T"]'
                tracer.problem(f"input `{name}` {reason}", fix, site)
    return inputs


def _run(
    tracer: Tracer, function: Callable[..., Any], model: Any, inputs: dict[str, Symbol]
) -> tuple[tuple[ir.Value, ...], bool]:
    """Run the walk's code on symbols; return its results, and whether they are a tuple."""
    first = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = "a walk cannot be async; only a route can await"
        tracer.problem(what, f"def {function.__name__}(...), without async", first)
        return (), False
    result = function(model, **inputs)
    if inspect.isgenerator(result):
        while True:
            try:
                emission = next(result)
            except StopIteration as stop:
                result = stop.value
                break
            tracer.site_override = _yield_site(result)
            tracer.emit(emission)
            tracer.site_override = None
    tracer.site_override = first
    for part in _parts(result):
        if isinstance(part, Emission):
            kind = type(part).__name__
            what = f"the walk returns {kind}(...) instead of yielding it, so the client receives nothing"
            tracer.problem(what, f"yield {kind}(...)")
            return (), False
    values = [tracer.use(part, "the result of the walk") for part in _parts(result)]
    return tuple(value for value in values if value is not None), isinstance(result, tuple)


def _yield_site(generator: Any) -> str:
    """`file:line` at which a generator, or the one it yields from, is suspended."""
    while inspect.isgenerator(generator.gi_yieldfrom):
        generator = generator.gi_yieldfrom
    return f"{generator.gi_code.co_filename}:{generator.gi_frame.f_lineno}"
