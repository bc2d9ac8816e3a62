"""Reads a walk into the parts of its drawing.

Folded away here: constants, fields and elements (they become text on a box or a link), puts (the pipe starts where
the value is made) and the opening of streams. What is drawn where is not decided here.
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
"""From "component.op" to the names of the workers that run it."""

MAX_NOTE_CHARS = 30
"""Characters in the small text of a box; what is longer is cut."""


def build_drawing(walk: ir.Walk, placement: WorkersByOp | None = None, *, show_types: bool = True) -> Subgraph:
    """The parts of a walk's drawing, with or without types on the links."""
    reader = _Builder(placement, show_types)
    scope = _Scope(reader, Subgraph("", "walk", walk.name))
    for value in walk.inputs:
        is_state = isinstance(value.type, StateType)
        item = Item(f"in.{value.name}", "state" if is_state else "input", value.name, type_text(value.type))
        scope.known[value.name] = scope.add_item(item)
    reader.body(walk.body, scope)
    for value in walk.outputs:
        item = scope.sheet.add(Item(f"out.{value.name}", "output", "return", reader.text(value)))
        scope.link(value, item.id)
    reader.connect()
    return scope.sheet


def type_text(type_: Type) -> str:
    """A type as a drawing shows it: without the numbers that tell equally named dimensions apart."""
    return type_.kind if isinstance(type_, StateType) else re.sub(r"#\d+", "", str(type_))


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Wire:
    """Where a value can be picked up on a sheet."""

    item: str
    terminal: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _InnerValue:
    """A value that a frame gives; its port is made when someone wants it."""

    scope: _Scope
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _LazyItem:
    """An item that is drawn only if someone links to it: a step, an index, a constant."""

    item: Item


@dataclass(frozen=True, slots=True)
class _Projection:
    """A field or an element: written on the link from what it is taken from."""

    src: ir.Value
    index: ir.Value | None
    text: str


@dataclass(eq=False, slots=True)
class _Scope:
    """What is known on one sheet while it is read."""

    builder: _Builder
    sheet: Subgraph
    parent: _Scope | None = None
    extends: frozenset[str] = frozenset()
    known: dict[str, _Wire | _InnerValue | _LazyItem] = field(
        default_factory=dict[str, _Wire | _InnerValue | _LazyItem]
    )
    streams: dict[str, str] = field(default_factory=dict[str, str])

    def add_item(self, item: Item, label: str = "") -> _Wire:
        self.sheet.add(item)
        return _Wire(item.id, item.id, label)

    def find(self, name: str) -> _Wire:
        """Where a value can be picked up on this sheet, bringing it here if it is elsewhere."""
        at = self.known.get(name)
        if at is None:
            at = self.bring_in(name)
        elif isinstance(at, _LazyItem):
            at = self.add_item(at.item)
        elif isinstance(at, _InnerValue):
            inner = at.scope
            port = inner.sheet.add(Item(f"{inner.sheet.id}>{name}", "port", side="right"))
            for given in at.names:
                inner.attach(given, port.id)
            at = _Wire(inner.sheet.id, port.id)
        self.known[name] = at
        return at

    def bring_in(self, name: str) -> _Wire:
        assert self.parent is not None, f"%{name} is used where it does not exist"
        outer = self.parent.find(name)
        port = Item(f"{self.sheet.id}<{name}", "port")
        style = self.builder.style(name, name in self.extends)
        link = Link(outer.item, outer.terminal, self.sheet.id, port.id, name, style, outer.label)
        self.parent.sheet.add_link(link)
        return self.add_item(port)

    def attach(self, name: str, target: str, *, is_back: bool = False, label: str = "") -> None:
        """A link from where a value is to an item of this sheet."""
        wire = self.find(name)
        value = name.rpartition(" ")[2]  # an arm's results are known as "then x" and "otherwise x"
        style = self.builder.style(value, is_extended=True)
        text = label or ("" if is_back else wire.label)
        self.sheet.add_link(Link(wire.item, wire.terminal, target, target, value, style, text, is_back))

    def link(self, value: ir.Value, target: str, *, is_extended: bool = False) -> None:
        """A link from a value, or from what it is a part of, to an item of this sheet."""
        part = self.builder.parts.get(value.name)
        if part is None:
            wire = self.find(value.name)
            style = self.builder.style(value.name, is_extended)
            self.sheet.add_link(Link(wire.item, wire.terminal, target, target, value.name, style, wire.label))
            return
        root = self.builder.root(value)
        self.attach(root.name, target, label=_truncate(part.text))
        if part.index is not None and part.index.name not in self.builder.inline_texts:
            self.link(part.index, target)

    def link_condition(self, value: ir.Value, sheet: Subgraph) -> None:
        """A link that ends at the border of a frame, because it decides what the frame does."""
        if value.name not in self.builder.inline_texts:
            root = self.builder.root(value)
            wire = self.find(root.name)
            port = sheet.add(Item(f"{sheet.id}<?{value.name}", "port"))
            label = wire.label if root is value else ""
            self.sheet.add_link(Link(wire.item, wire.terminal, sheet.id, port.id, value.name, "value", label))

    def chain(self) -> list[_Scope]:
        """This scope and those around it, innermost first."""
        return [self, *(self.parent.chain() if self.parent else ())]


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """One end of a stream: the scope it is in and the item there."""

    stream: str
    scope: _Scope
    wire: _Wire


class _Builder:
    def __init__(self, placement: WorkersByOp | None, show_types: bool) -> None:
        self.placement = placement
        self.show_types = show_types
        self.parts: dict[str, _Projection] = {}
        self.inline_texts: dict[str, str] = {}
        """Steps, indices and constants, by name: text enough where an op takes them."""
        self.states: set[str] = set()
        self.fills: list[_StreamEnd] = []
        self.reads: list[_StreamEnd] = []
        self.count = 0

    def style(self, name: str, is_extended: bool) -> Style:
        if name not in self.states:
            return "value"
        return "extends" if is_extended else "views"

    def root(self, value: ir.Value) -> ir.Value:
        part = self.parts.get(value.name)
        return value if part is None else self.root(part.src)

    def text(self, value: ir.Value) -> str:
        """A value as captions and notes name it."""
        part = self.parts.get(value.name)
        return part.text if part else self.inline_texts.get(value.name, value.name)

    def fresh_id(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def body(self, body: tuple[ir.Node, ...], scope: _Scope) -> None:
        for node in ir.flat(body):
            touched = (*ir.operands(node), *ir.defines(node))
            self.states.update(value.name for value in touched if isinstance(value.type, StateType))
        for node in body:
            self.node(node, scope)

    def node(self, node: ir.Node, scope: _Scope) -> None:
        match node:
            case ir.Call():
                self.call(node, scope)
            case ir.New():
                item = Item(self.fresh_id("state"), "state", node.out.name, type_text(node.out.type))
                scope.known[node.out.name] = scope.add_item(item)
            case ir.Fork():
                wire = scope.add_item(Item(self.fresh_id("state"), "state", node.out.name, "fork"))
                scope.link(node.src, wire.item)
                scope.known[node.out.name] = wire
            case ir.Const() | ir.Take() | ir.Field() | ir.Open() | ir.Put():
                self.record_projection(node, scope)
            case ir.Get():
                self.take_next(node, scope)
            case ir.Emit():
                clock = ", ".join(f"{key}={number}" for key, number in node.clock)
                item = scope.sheet.add(Item(self.fresh_id("emit"), "emission", node.kind, clock))
                scope.link(node.value, item.id)
            case ir.Loop() | ir.Windows() | ir.Each() | ir.Choose():
                self.region(node, scope)

    def record_projection(self, node: ir.Const | ir.Take | ir.Field | ir.Open | ir.Put, scope: _Scope) -> None:
        """Remember what has no box of its own."""
        match node:
            case ir.Const():
                text = _truncate(repr(node.literal))
                self.inline_texts[node.out.name] = text
                scope.known[node.out.name] = _LazyItem(Item(self.fresh_id("const"), "const", text))
            case ir.Take():
                text = f"{self.text(node.src)}[{self.text(node.index)}]"
                self.parts[node.out.name] = _Projection(node.src, node.index, text)
            case ir.Field():
                self.parts[node.out.name] = _Projection(node.src, None, f"{self.text(node.src)}.{node.name}")
            case ir.Open():
                scope.streams[node.stream] = self.fresh_id(f"{node.stream}.")
            case ir.Put():
                wire = scope.find(self.root(node.value).name)
                self.fills.append(_StreamEnd(self.stream(node.stream, scope), scope, wire))

    def call(self, node: ir.Call, scope: _Scope) -> None:
        name = f"{node.component}.{node.op}"
        workers = () if self.placement is None else tuple(self.placement.get(name, ()))
        group = node.component if self.placement is None else ", ".join(workers)
        item = scope.sheet.add(Item(self.fresh_id("op"), "op", name, workers=workers, group=group))
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
            scope.known[value.name] = _Wire(item.id, item.id, label)
        scope.known.update({state: _Wire(item.id, item.id) for state in extended})

    def take_next(self, node: ir.Get, scope: _Scope) -> None:
        default = self.inline_texts.get(node.default.name)
        note = f"else {default or self.text(node.default)}"
        wire = scope.add_item(Item(self.fresh_id("get"), "get", f"next ~{node.stream}", _truncate(note)))
        if default is None:
            scope.link(node.default, wire.item)
        self.reads.append(_StreamEnd(self.stream(node.stream, scope), scope, wire))
        scope.known[node.out.name] = wire

    def region(self, node: ir.Region, scope: _Scope) -> None:
        match node:
            case ir.Loop():
                self.loop(node, scope)
            case ir.Windows():
                inner = self.frame(node, scope, "windows", _windows_caption(node))
                wire = inner.add_item(Item(self.fresh_id("item"), "item", node.item.name, type_text(node.item.type)))
                inner.known[node.item.name] = wire
                self.reads.append(_StreamEnd(self.stream(node.stream, scope), inner, wire))
                self.bind_plain(node.fresh, "fresh", inner)
                self.body(node.body, inner)
                self.collect((), inner, scope)
            case ir.Each():
                self.each(node, scope)
            case ir.Choose():
                self.choose(node, scope)

    def frame(self, node: ir.Node, scope: _Scope, kind: str, caption: str) -> _Scope:
        sheet = Subgraph(self.fresh_id(kind), kind, caption)
        scope.sheet.add(Item(sheet.id, "frame", caption, subgraph=sheet))
        extends = frozenset(name for what, name in access(node).extends if what == "state")
        return _Scope(self, sheet, scope, extends)

    def collect(self, collect: tuple[ir.Collect, ...], inner: _Scope, scope: _Scope) -> None:
        """What a frame gathers, and the states it has extended, go on from the frame."""
        for part in collect:
            scope.known[part.out.name] = _InnerValue(inner, (self.root(part.inner).name,))
        scope.known.update({state: _InnerValue(inner, (state,)) for state in sorted(inner.extends)})

    def bind_plain(self, value: ir.Value, text: str, scope: _Scope) -> None:
        self.inline_texts[value.name] = text
        scope.known[value.name] = _LazyItem(Item(self.fresh_id("plain"), "item", text))

    def loop(self, node: ir.Loop, scope: _Scope) -> None:
        steps = self.text(node.steps) if isinstance(node.steps, ir.Value) else str(node.steps)
        until = f", until {' or '.join(self.text(flag) for flag in node.stop)}" if node.stop else ""
        inner = self.frame(node, scope, "loop", f"loop {'≤ ' if until else '× '}{steps}{until}")
        if isinstance(node.steps, ir.Value):
            scope.link_condition(node.steps, inner.sheet)
        self.bind_plain(node.step, "step", inner)
        for carry in node.carry:
            start = self.inline_texts.get(carry.init.name)
            note = "" if start is None else f"from {start}"
            wire = inner.add_item(Item(self.fresh_id("carry"), "carry", carry.name, note))
            if start is None:
                inner.link(carry.init, wire.item)
            inner.known[carry.inner.name] = wire
        self.body(node.body, inner)
        for carry in node.carry:
            chip = inner.known[carry.inner.name]
            assert isinstance(chip, _Wire)
            scope.known[carry.out.name] = _InnerValue(inner, (self.root(carry.next).name,))
            if carry.next != carry.inner:
                inner.attach(self.root(carry.next).name, chip.item, is_back=True)
        self.collect(node.collect, inner, scope)

    def each(self, node: ir.Each, scope: _Scope) -> None:
        inner = self.frame(node, scope, "each", f"each {node.item.name} of {self.text(node.items)}")
        wire = inner.add_item(Item(self.fresh_id("item"), "item", node.item.name, type_text(node.item.type)))
        inner.link(node.items, wire.item)
        inner.known[node.item.name] = wire
        self.bind_plain(node.index, "index", inner)
        self.body(node.body, inner)
        self.collect(node.collect, inner, scope)

    def choose(self, node: ir.Choose, scope: _Scope) -> None:
        if not node.then.body and not node.otherwise.body:
            self.pick(node, scope)
            return
        outer = self.frame(node, scope, "choose", f"choose by {self.text(node.flag)}")
        scope.link_condition(node.flag, outer.sheet)
        for word, arm in (("then", node.then), ("otherwise", node.otherwise)):
            inner = self.frame(node, outer, "arm", word)
            self.body(arm.body, inner)
            for value, out in zip(arm.results, node.outs, strict=True):
                outer.known[f"{word} {out.name}"] = _InnerValue(inner, (self.root(value).name,))
            # An arm may leave alone what the other extends.
            touched = sorted(state for state in inner.extends if state in inner.known)
            outer.known.update({f"{word} {state}": _InnerValue(inner, (state,)) for state in touched})
        for name in (*(out.name for out in node.outs), *sorted(outer.extends)):
            given = tuple(f"{word} {name}" for word in ("then", "otherwise") if f"{word} {name}" in outer.known)
            scope.known[name] = _InnerValue(outer, given)

    def pick(self, node: ir.Choose, scope: _Scope) -> None:
        """A choice between values that are there already is a box, not a frame."""
        for first, second, out in zip(node.then.results, node.otherwise.results, node.outs, strict=True):
            note = _truncate(f"{self.text(first)} or {self.text(second)}")
            wire = scope.add_item(Item(self.fresh_id("pick"), "choose", f"by {self.text(node.flag)}", note))
            for value in (node.flag, first, second):
                if value.name not in self.inline_texts:
                    scope.link(value, wire.item)
            scope.known[out.name] = wire

    def stream(self, name: str, scope: _Scope) -> str:
        return next((at.streams[name] for at in scope.chain() if name in at.streams), name)

    def connect(self) -> None:
        """Pipes from every place that fills a stream to every place that reads it."""
        for fill in self.fills:
            for read in self.reads:
                if fill.stream == read.stream:
                    _pipe(fill, read, self.fresh_id("~"))


def _windows_caption(node: ir.Windows) -> str:
    flush = ", flushed" if node.flush else ""
    first = f", first {node.first}" if node.first != node.size else ""
    return f"windows of ~{node.stream} {node.size}/{node.stride}{first}{flush}"


def _pipe(fill: _StreamEnd, read: _StreamEnd, key: str) -> None:
    out, back = fill.scope.chain(), read.scope.chain()
    around = next(scope for scope in out if scope in back)
    name = fill.stream.rsplit(".", 1)[0]
    tail = fill.wire
    for scope in out[: out.index(around)]:
        port = scope.sheet.add(Item(f"{scope.sheet.id}>{key}", "port", side="right"))
        scope.sheet.add_link(Link(tail.item, tail.terminal, port.id, port.id, f"~{name}", "pipe"))
        tail = _Wire(scope.sheet.id, port.id)
    head = read.wire
    for scope in back[: back.index(around)]:
        port = scope.sheet.add(Item(f"{scope.sheet.id}<{key}", "port"))
        scope.sheet.add_link(Link(port.id, port.id, head.item, head.terminal, f"~{name}", "pipe"))
        head = _Wire(scope.sheet.id, port.id)
    order = list(around.sheet.items)
    is_back = order.index(tail.item) >= order.index(head.item)
    around.sheet.add_link(
        Link(tail.item, tail.terminal, head.item, head.terminal, f"~{name}", "pipe", f"~{name}", is_back)
    )
