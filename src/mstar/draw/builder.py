"""Diagram builder: converts a walk (graph IR) to items and links on nested subgraphs.

Constants, fields and elements become text on a box or link; a put becomes a pipe that starts where the value is
computed; opening a stream is omitted. Coordinates are assigned in `layout`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar.draw.elements import Item, Link, Style, Subgraph
from mstar.graph import ir
from mstar.graph.flow import access
from mstar.graph.types import StateType, Type

WorkersByOp = Mapping[str, tuple[str, ...]]
"""Maps "component.op" to the names of the workers that run it."""

MAX_NOTE_CHARS = 30
"""Maximum characters of a note in a box. Longer notes are truncated."""


def build_drawing(walk: ir.Walk, placement: WorkersByOp | None = None, *, show_types: bool = True) -> Subgraph:
    """Build the diagram of a walk, with or without types on the links."""
    builder = _Builder(placement, show_types)
    scope = _Scope(builder, Subgraph("", "walk", walk.name))
    for value in walk.inputs:
        is_state = isinstance(value.type, StateType)
        item = Item(f"in.{value.name}", "state" if is_state else "input", value.name, type_text(value.type))
        scope.wires[value.name] = scope.add_item(item)
    builder.body(walk.body, scope)
    for value in walk.outputs:
        item = scope.subgraph.add(Item(f"out.{value.name}", "output", "return", builder.text(value)))
        scope.link(value, item.id)
    builder.connect()
    return scope.subgraph


def type_text(type_: Type) -> str:
    """Format a type without the numbers that distinguish dimensions of the same name."""
    return type_.kind if isinstance(type_, StateType) else re.sub(r"#\d+", "", str(type_))


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Wire:
    """The item and terminal where a value is available in a subgraph."""

    item: str
    terminal: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _InnerValue:
    """A value that a frame outputs. Its port is created on first use."""

    scope: _Scope
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _LazyItem:
    """An item that is created on first use: a step, an index, a constant."""

    item: Item


@dataclass(frozen=True, slots=True)
class _Projection:
    """A field or an element, written on the link from its source."""

    src: ir.Value
    index: ir.Value | None
    text: str


@dataclass(eq=False, slots=True)
class _Scope:
    """Values and streams that are visible in one subgraph while it is built."""

    builder: _Builder
    subgraph: Subgraph
    parent: _Scope | None = None
    extends: frozenset[str] = frozenset()
    wires: dict[str, _Wire | _InnerValue | _LazyItem] = field(
        default_factory=dict[str, _Wire | _InnerValue | _LazyItem]
    )
    streams: dict[str, str] = field(default_factory=dict[str, str])

    def add_item(self, item: Item, label: str = "") -> _Wire:
        self.subgraph.add(item)
        return _Wire(item.id, item.id, label)

    def find(self, name: str) -> _Wire:
        """Return where a value is available in this subgraph. Imports it from an outer or inner one if needed."""
        wire = self.wires.get(name)
        if wire is None:
            wire = self.import_value(name)
        elif isinstance(wire, _LazyItem):
            wire = self.add_item(wire.item)
        elif isinstance(wire, _InnerValue):
            inner = wire.scope
            port = inner.subgraph.add(Item(f"{inner.subgraph.id}>{name}", "port", side="right"))
            for output in wire.names:
                inner.attach(output, port.id)
            wire = _Wire(inner.subgraph.id, port.id)
        self.wires[name] = wire
        return wire

    def import_value(self, name: str) -> _Wire:
        assert self.parent is not None, f"%{name} is used where it does not exist"
        outer = self.parent.find(name)
        port = Item(f"{self.subgraph.id}<{name}", "port")
        style = self.builder.style(name, name in self.extends)
        link = Link(outer.item, outer.terminal, self.subgraph.id, port.id, name, style, outer.label)
        self.parent.subgraph.add_link(link)
        return self.add_item(port)

    def attach(self, name: str, target: str, *, is_back: bool = False, label: str = "") -> None:
        """Add a link from a value to an item of this subgraph."""
        wire = self.find(name)
        value = name.rpartition(" ")[2]  # the results of an arm are named "then x" and "otherwise x"
        style = self.builder.style(value, is_extended=True)
        text = label or ("" if is_back else wire.label)
        self.subgraph.add_link(Link(wire.item, wire.terminal, target, target, value, style, text, is_back))

    def link(self, value: ir.Value, target: str, *, is_extended: bool = False) -> None:
        """Add a link from a value, or from the value it is a projection of, to an item of this subgraph."""
        projection = self.builder.projections.get(value.name)
        if projection is None:
            wire = self.find(value.name)
            style = self.builder.style(value.name, is_extended)
            self.subgraph.add_link(Link(wire.item, wire.terminal, target, target, value.name, style, wire.label))
            return
        root = self.builder.root(value)
        self.attach(root.name, target, label=_truncate(projection.text))
        if projection.index is not None and projection.index.name not in self.builder.inline_texts:
            self.link(projection.index, target)

    def link_condition(self, value: ir.Value, subgraph: Subgraph) -> None:
        """Add a link that ends at the border of a frame, because it controls the frame."""
        if value.name not in self.builder.inline_texts:
            root = self.builder.root(value)
            wire = self.find(root.name)
            port = subgraph.add(Item(f"{subgraph.id}<?{value.name}", "port"))
            label = wire.label if root is value else ""
            self.subgraph.add_link(Link(wire.item, wire.terminal, subgraph.id, port.id, value.name, "value", label))

    def chain(self) -> list[_Scope]:
        """This scope and its ancestors, innermost first."""
        return [self, *(self.parent.chain() if self.parent else ())]


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """One end of a stream: a scope and an item in it."""

    stream: str
    scope: _Scope
    wire: _Wire


class _Builder:
    def __init__(self, placement: WorkersByOp | None, show_types: bool) -> None:
        self.placement = placement
        self.show_types = show_types
        self.projections: dict[str, _Projection] = {}
        self.inline_texts: dict[str, str] = {}
        """Text of steps, indices and constants, by name. An op shows it instead of a link."""
        self.states: set[str] = set()
        self.fills: list[_StreamEnd] = []
        self.reads: list[_StreamEnd] = []
        self.count = 0

    def style(self, name: str, is_extended: bool) -> Style:
        if name not in self.states:
            return "value"
        return "extends" if is_extended else "views"

    def root(self, value: ir.Value) -> ir.Value:
        projection = self.projections.get(value.name)
        return value if projection is None else self.root(projection.src)

    def text(self, value: ir.Value) -> str:
        """Return the name of a value for captions and notes."""
        projection = self.projections.get(value.name)
        return projection.text if projection else self.inline_texts.get(value.name, value.name)

    def fresh_id(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def body(self, body: tuple[ir.Node, ...], scope: _Scope) -> None:
        for node in ir.flat(body):
            values = (*ir.operands(node), *ir.defines(node))
            self.states.update(value.name for value in values if isinstance(value.type, StateType))
        for node in body:
            self.node(node, scope)

    def node(self, node: ir.Node, scope: _Scope) -> None:
        match node:
            case ir.Call():
                self.call(node, scope)
            case ir.New():
                item = Item(self.fresh_id("state"), "state", node.out.name, type_text(node.out.type))
                scope.wires[node.out.name] = scope.add_item(item)
            case ir.Fork():
                wire = scope.add_item(Item(self.fresh_id("state"), "state", node.out.name, "fork"))
                scope.link(node.src, wire.item)
                scope.wires[node.out.name] = wire
            case ir.Const() | ir.Take() | ir.Field() | ir.Open() | ir.Put():
                self.record_projection(node, scope)
            case ir.Get():
                self.take_next(node, scope)
            case ir.Emit():
                clock = ", ".join(f"{key}={rate}" for key, rate in node.clock)
                item = scope.subgraph.add(Item(self.fresh_id("emit"), "emission", node.kind, clock))
                scope.link(node.value, item.id)
            case ir.Loop() | ir.Windows() | ir.Each() | ir.Choose():
                self.region(node, scope)

    def record_projection(self, node: ir.Const | ir.Take | ir.Field | ir.Open | ir.Put, scope: _Scope) -> None:
        """Record nodes that have no box of their own."""
        match node:
            case ir.Const():
                text = _truncate(repr(node.literal))
                self.inline_texts[node.out.name] = text
                scope.wires[node.out.name] = _LazyItem(Item(self.fresh_id("const"), "const", text))
            case ir.Take():
                text = f"{self.text(node.src)}[{self.text(node.index)}]"
                self.projections[node.out.name] = _Projection(node.src, node.index, text)
            case ir.Field():
                self.projections[node.out.name] = _Projection(node.src, None, f"{self.text(node.src)}.{node.name}")
            case ir.Open():
                scope.streams[node.stream] = self.fresh_id(f"{node.stream}.")
            case ir.Put():
                wire = scope.find(self.root(node.value).name)
                self.fills.append(_StreamEnd(self.stream(node.stream, scope), scope, wire))

    def call(self, node: ir.Call, scope: _Scope) -> None:
        name = f"{node.component}.{node.op}"
        workers = () if self.placement is None else tuple(self.placement.get(name, ()))
        group = node.component if self.placement is None else ", ".join(workers)
        item = scope.subgraph.add(Item(self.fresh_id("op"), "op", name, workers=workers, group=group))
        extended = {value.name for value in node.extends}
        notes: list[str] = []
        for key, arg in (*node.args, *node.static):
            if isinstance(arg, ir.Value) and arg.name not in self.inline_texts:
                scope.link(arg, item.id, is_extended=arg.name in extended)
            else:
                text = self.inline_texts[arg.name] if isinstance(arg, ir.Value) else repr(arg)
                notes.append(text if text == key else f"{key}={text}")
        item.note = _truncate(", ".join(notes))
        for value in node.outs:
            label = _truncate(type_text(value.type)) if self.show_types else ""
            scope.wires[value.name] = _Wire(item.id, item.id, label)
        scope.wires.update({state: _Wire(item.id, item.id) for state in extended})

    def take_next(self, node: ir.Get, scope: _Scope) -> None:
        default = self.inline_texts.get(node.default.name)
        note = f"else {default or self.text(node.default)}"
        wire = scope.add_item(Item(self.fresh_id("get"), "get", f"next ~{node.stream}", _truncate(note)))
        if default is None:
            scope.link(node.default, wire.item)
        self.reads.append(_StreamEnd(self.stream(node.stream, scope), scope, wire))
        scope.wires[node.out.name] = wire

    def region(self, node: ir.Region, scope: _Scope) -> None:
        match node:
            case ir.Loop():
                self.loop(node, scope)
            case ir.Windows():
                inner = self.frame(node, scope, "windows", _windows_caption(node))
                wire = inner.add_item(Item(self.fresh_id("item"), "item", node.item.name, type_text(node.item.type)))
                inner.wires[node.item.name] = wire
                self.reads.append(_StreamEnd(self.stream(node.stream, scope), inner, wire))
                self.bind_plain(node.fresh, "fresh", inner)
                self.body(node.body, inner)
                self.collect((), inner, scope)
            case ir.Each():
                self.each(node, scope)
            case ir.Choose():
                self.choose(node, scope)

    def frame(self, node: ir.Node, scope: _Scope, kind: str, caption: str) -> _Scope:
        subgraph = Subgraph(self.fresh_id(kind), kind, caption)
        scope.subgraph.add(Item(subgraph.id, "frame", caption, subgraph=subgraph))
        extends = frozenset(name for what, name in access(node).extends if what == "state")
        return _Scope(self, subgraph, scope, extends)

    def collect(self, collect: tuple[ir.Collect, ...], inner: _Scope, scope: _Scope) -> None:
        """Make collected values and extended states available after the frame."""
        for collected in collect:
            scope.wires[collected.out.name] = _InnerValue(inner, (self.root(collected.inner).name,))
        scope.wires.update({state: _InnerValue(inner, (state,)) for state in sorted(inner.extends)})

    def bind_plain(self, value: ir.Value, text: str, scope: _Scope) -> None:
        self.inline_texts[value.name] = text
        scope.wires[value.name] = _LazyItem(Item(self.fresh_id("plain"), "item", text))

    def loop(self, node: ir.Loop, scope: _Scope) -> None:
        steps = self.text(node.steps) if isinstance(node.steps, ir.Value) else str(node.steps)
        until = f", until {' or '.join(self.text(flag) for flag in node.stop)}" if node.stop else ""
        inner = self.frame(node, scope, "loop", f"loop {'≤ ' if until else '× '}{steps}{until}")
        if isinstance(node.steps, ir.Value):
            scope.link_condition(node.steps, inner.subgraph)
        self.bind_plain(node.step, "step", inner)
        for carry in node.carry:
            initial = self.inline_texts.get(carry.init.name)
            note = "" if initial is None else f"from {initial}"
            wire = inner.add_item(Item(self.fresh_id("carry"), "carry", carry.name, note))
            if initial is None:
                inner.link(carry.init, wire.item)
            inner.wires[carry.inner.name] = wire
        self.body(node.body, inner)
        for carry in node.carry:
            chip = inner.wires[carry.inner.name]
            assert isinstance(chip, _Wire)
            scope.wires[carry.out.name] = _InnerValue(inner, (self.root(carry.next).name,))
            if carry.next != carry.inner:
                inner.attach(self.root(carry.next).name, chip.item, is_back=True)
        self.collect(node.collect, inner, scope)

    def each(self, node: ir.Each, scope: _Scope) -> None:
        inner = self.frame(node, scope, "each", f"each {node.item.name} of {self.text(node.items)}")
        wire = inner.add_item(Item(self.fresh_id("item"), "item", node.item.name, type_text(node.item.type)))
        inner.link(node.items, wire.item)
        inner.wires[node.item.name] = wire
        self.bind_plain(node.index, "index", inner)
        self.body(node.body, inner)
        self.collect(node.collect, inner, scope)

    def choose(self, node: ir.Choose, scope: _Scope) -> None:
        if not node.then.body and not node.otherwise.body:
            self.pick(node, scope)
            return
        outer = self.frame(node, scope, "choose", f"choose by {self.text(node.flag)}")
        scope.link_condition(node.flag, outer.subgraph)
        for word, arm in (("then", node.then), ("otherwise", node.otherwise)):
            inner = self.frame(node, outer, "arm", word)
            self.body(arm.body, inner)
            for value, out in zip(arm.results, node.outs, strict=True):
                outer.wires[f"{word} {out.name}"] = _InnerValue(inner, (self.root(value).name,))
            # An arm can leave a state unchanged that the other arm extends.
            touched = sorted(state for state in inner.extends if state in inner.wires)
            outer.wires.update({f"{word} {state}": _InnerValue(inner, (state,)) for state in touched})
        for name in (*(out.name for out in node.outs), *sorted(outer.extends)):
            outputs = tuple(f"{word} {name}" for word in ("then", "otherwise") if f"{word} {name}" in outer.wires)
            scope.wires[name] = _InnerValue(outer, outputs)

    def pick(self, node: ir.Choose, scope: _Scope) -> None:
        """Draw a choice between existing values as a box instead of a frame."""
        for first, second, out in zip(node.then.results, node.otherwise.results, node.outs, strict=True):
            note = _truncate(f"{self.text(first)} or {self.text(second)}")
            wire = scope.add_item(Item(self.fresh_id("pick"), "choose", f"by {self.text(node.flag)}", note))
            for value in (node.flag, first, second):
                if value.name not in self.inline_texts:
                    scope.link(value, wire.item)
            scope.wires[out.name] = wire

    def stream(self, name: str, scope: _Scope) -> str:
        return next((outer.streams[name] for outer in scope.chain() if name in outer.streams), name)

    def connect(self) -> None:
        """Add pipes from every writer of a stream to every reader."""
        for fill in self.fills:
            for read in self.reads:
                if fill.stream == read.stream:
                    _pipe(fill, read, self.fresh_id("~"))


def _windows_caption(node: ir.Windows) -> str:
    flush = ", flushed" if node.flush else ""
    first = f", first {node.first}" if node.first != node.size else ""
    return f"windows of ~{node.stream} {node.size}/{node.stride}{first}{flush}"


def _pipe(fill: _StreamEnd, read: _StreamEnd, key: str) -> None:
    outward, inward = fill.scope.chain(), read.scope.chain()
    common = next(scope for scope in outward if scope in inward)
    name = fill.stream.rsplit(".", 1)[0]
    tail = fill.wire
    for scope in outward[: outward.index(common)]:
        port = scope.subgraph.add(Item(f"{scope.subgraph.id}>{key}", "port", side="right"))
        scope.subgraph.add_link(Link(tail.item, tail.terminal, port.id, port.id, f"~{name}", "pipe"))
        tail = _Wire(scope.subgraph.id, port.id)
    head = read.wire
    for scope in inward[: inward.index(common)]:
        port = scope.subgraph.add(Item(f"{scope.subgraph.id}<{key}", "port"))
        scope.subgraph.add_link(Link(port.id, port.id, head.item, head.terminal, f"~{name}", "pipe"))
        head = _Wire(scope.subgraph.id, port.id)
    order = list(common.subgraph.items)
    is_back = order.index(tail.item) >= order.index(head.item)
    common.subgraph.add_link(
        Link(tail.item, tail.terminal, head.item, head.terminal, f"~{name}", "pipe", f"~{name}", is_back)
    )
