"""Stable text form of a walk, for golden tests and bug reports, and its fingerprint (structural hash).

`!` marks a state that a call extends, `%` a value, `~` a stream. Source lines are omitted, so moving a walk within its
file does not change the text. `fingerprint` hashes the same text with numbers instead of names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from mstar.graph.ir import (
    Arg,
    Call,
    Choose,
    Const,
    Each,
    Emit,
    Field,
    Fork,
    Get,
    Loop,
    New,
    Node,
    Open,
    Put,
    Take,
    Value,
    Walk,
    Windows,
)

Naming = Callable[[str], str]


def render(walk: Walk) -> str:
    """The walk as text, ending in a newline."""
    return _render(walk, value=lambda name: f"%{name}", stream=lambda name: f"~{name}")


def fingerprint(walk: Walk) -> str:
    """Hash of the walk's structure: equal for walks that differ only in the names of values or streams."""
    values: dict[str, str] = {}
    streams: dict[str, str] = {}
    text = _render(
        walk,
        value=lambda name: values.setdefault(name, f"%{len(values)}"),
        stream=lambda name: streams.setdefault(name, f"~{len(streams)}"),
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _render(walk: Walk, value: Naming, stream: Naming) -> str:
    writer = _Writer(value, stream)
    head = f"walk {walk.name}({', '.join(map(writer.typed, walk.inputs))})"
    tail = (
        [f"  return {', '.join(map(writer.arg, walk.outputs))}{',' if walk.is_tuple else ''}"] if walk.outputs else []
    )
    return "\n".join([head, *writer.lines(walk.body, 1), *tail]) + "\n"


class _Writer:
    def __init__(self, value: Naming, stream: Naming) -> None:
        self.value = value
        self.stream = stream

    def arg(self, arg: Arg) -> str:
        return self.value(arg.name) if isinstance(arg, Value) else repr(arg)

    def typed(self, value: Value) -> str:
        return f"{self.value(value.name)}: {value.type}"

    def lines(self, body: tuple[Node, ...], depth: int) -> Iterator[str]:
        pad = "  " * depth
        for node in body:
            match node:
                case Loop():
                    yield from (pad + line for line in self.loop(node))
                case Windows() | Each():
                    yield pad + self.header(node)
                    yield from self.lines(node.body, depth + 1)
                    if isinstance(node, Each):
                        yield from (pad + line for line in self.collect(node))
                case Choose():
                    yield from (pad + line for line in self.choose(node))
                case _:
                    yield pad + self.leaf(node)

    def leaf(self, node: Node) -> str:  # noqa: C901 - a case for each node
        match node:
            case Call():
                return self.call(node)
            case New():
                return f"{self.typed(node.out)} = new {node.component}"
            case Fork():
                return f"{self.typed(node.out)} = fork {self.arg(node.src)}"
            case Const():
                return f"{self.typed(node.out)} = {node.literal!r}"
            case Take():
                return f"{self.typed(node.out)} = {self.arg(node.src)}[{self.arg(node.index)}]"
            case Field():
                return f"{self.typed(node.out)} = {self.arg(node.src)}.{node.name}"
            case Open():
                return f"stream {self.stream(node.stream)}: {node.item}"
            case Put():
                return f"put {self.arg(node.value)} -> {self.stream(node.stream)}"
            case Get():
                return f"{self.typed(node.out)} = get {self.stream(node.stream)} else {self.arg(node.default)}"
            case Emit():
                clock = "".join(f", {key}={number}" for key, number in node.clock)
                return f"emit {node.kind}({self.arg(node.value)}{clock})"
            case _:
                raise TypeError(f"{type(node).__name__} has bodies and is not a single line")

    def call(self, node: Call) -> str:
        extended = {value.name for value in node.extends}
        args = ", ".join(
            f"{key}={'!' if isinstance(arg, Value) and arg.name in extended else ''}{self.arg(arg)}"
            for key, arg in node.args
        )
        outs = ", ".join(map(self.typed, node.outs))
        static = "[" + ", ".join(f"{key}={literal!r}" for key, literal in node.static) + "]" if node.static else ""
        return f"{outs + ' = ' if outs else ''}{node.component}.{node.op}{static}({args})"

    def header(self, node: Windows | Each) -> str:
        if isinstance(node, Each):
            return f"each {self.typed(node.item)} at {self.arg(node.index)} in {self.arg(node.items)}"
        cut = " flush" if node.flush else ""
        sizes = f"size={node.size} stride={node.stride} first={node.first}{cut}"
        return f"windows {self.typed(node.item)} fresh {self.arg(node.fresh)} of {self.stream(node.stream)} {sizes}"

    def loop(self, node: Loop) -> Iterator[str]:
        carried = ", ".join(f"{self.typed(c.inner)} = {self.arg(c.init)}" for c in node.carry)
        yield f"loop {self.arg(node.step)} < {self.arg(node.steps)}" + (f" carry {carried}" if carried else "")
        yield from self.lines(node.body, 1)
        if node.carry:
            yield "  next " + ", ".join(f"{self.arg(c.inner)} = {self.arg(c.next)}" for c in node.carry)
        if node.stop:
            yield f"  stop when {' or '.join(map(self.arg, node.stop))}"
        if node.carry:
            yield "last " + ", ".join(f"{self.arg(c.out)} of {self.arg(c.inner)}" for c in node.carry)
        yield from self.collect(node)

    def collect(self, node: Loop | Each) -> Iterator[str]:
        if node.collect:
            yield "all " + ", ".join(f"{self.typed(c.out)} of {self.arg(c.inner)}" for c in node.collect)

    def choose(self, node: Choose) -> Iterator[str]:
        outs = ", ".join(map(self.typed, node.outs))
        yield f"{outs + ' = ' if outs else ''}choose {self.arg(node.flag)}"
        for word, arm in (("then", node.then), ("otherwise", node.otherwise)):
            yield f"  {word}"
            yield from self.lines(arm.body, 2)
            if arm.results:
                yield f"    give {', '.join(map(self.arg, arm.results))}"
