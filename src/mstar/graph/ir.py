"""The walk graph: frozen nodes in nested bodies. Standard library only; no tensors, no per-request state.

A body is a tuple of nodes in program order. Order alone means nothing: two nodes are ordered only by the
values, states, streams and emissions they share (see `flow`). Nodes with a body of their own (Loop, Windows,
Each, Choose) are regions; a value made inside a region is not visible outside it, except through a carry, a
collection or an arm's results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstar.graph.types import Type

Literal = None | bool | int | float | str | tuple["Literal", ...]
"""A constant of the walk, known when it is traced."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that will exist when the walk is served. Its name is unique in the walk."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"%{self.name}"


Arg = Value | Literal


@dataclass(frozen=True, slots=True)
class Call:
    """One op for one request.

    `extends` are the states it writes; any other state among `args` it only reads. `static` arguments are constants
    that calls must share to run as one batch.
    """

    component: str
    op: str
    args: tuple[tuple[str, Arg], ...]
    outs: tuple[Value, ...]
    extends: tuple[Value, ...] = ()
    static: tuple[tuple[str, Literal], ...] = ()
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class New:
    """A fresh state in a component."""

    component: str
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """A state that starts as a copy of another and goes its own way."""

    src: Value
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Const:
    """A constant where a value is needed: what a loop starts from, what an arm gives."""

    literal: Literal
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Take:
    """One element along the first axis of a tensor or list."""

    src: Value
    index: Value
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """One named field of a request's dataclass."""

    src: Value
    name: str
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Open:
    """A stream begins to exist; inside a loop, a new one each iteration."""

    stream: str
    item: Type
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Put:
    """Append a value to a stream."""

    stream: str
    value: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Get:
    """The next item of a stream; once its producers have ended and all is read, `default`."""

    stream: str
    default: Value
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """Send a value to the client. `clock` holds what turns its size into seconds, such as rate=24000."""

    kind: str
    value: Value
    clock: tuple[tuple[str, int | float], ...] = ()
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that crosses iterations: its start, its name inside, what the next iteration gets, its last."""

    name: str
    init: Value
    inner: Value
    next: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Collect:
    """A value of each body of a region, gathered into a list in order."""

    name: str
    inner: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """Repeat the body `steps` times, or until an iteration ends with one of the `stop` flags set."""

    steps: Value | int
    step: Value
    carry: tuple[Carry, ...]
    collect: tuple[Collect, ...]
    stop: tuple[Value, ...]
    body: tuple[Node, ...]
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Windows:
    """Run the body once for each window of a stream, in order.

    Window k ends at item `first + k * stride` and holds at most the `size` items before that. `fresh` counts
    the items no earlier window held. With `flush`, what is left when the stream ends makes a last, cut window.
    """

    stream: str
    item: Value
    fresh: Value
    size: int
    stride: int
    first: int
    flush: bool
    body: tuple[Node, ...]
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Each:
    """Run the body once for each element of `items`, side by side."""

    items: Value
    item: Value
    index: Value
    collect: tuple[Collect, ...]
    body: tuple[Node, ...]
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Arm:
    """One branch of a choice."""

    body: tuple[Node, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Run one of two arms; `outs` are the results of the one that ran."""

    flag: Value
    then: Arm
    otherwise: Arm
    outs: tuple[Value, ...]
    site: str = field(default="", compare=False)


Node = Call | New | Fork | Const | Take | Field | Open | Put | Get | Emit | Loop | Windows | Each | Choose
Region = Loop | Windows | Each | Choose


@dataclass(frozen=True, slots=True)
class Walk:
    """A whole walk: typed inputs, a body, and what it returns to the route."""

    name: str
    inputs: tuple[Value, ...]
    body: tuple[Node, ...]
    outputs: tuple[Value, ...] = ()
    is_tuple: bool = False
    """Whether the outputs come as a tuple; one that does not is a value of its own."""
    site: str = field(default="", compare=False)

    def __str__(self) -> str:
        from mstar.graph.text import render  # here, because text is written in terms of these nodes

        return render(self)


def bodies(node: Node) -> tuple[tuple[Node, ...], ...]:
    """The bodies a node has: none, one, or a choice's two."""
    match node:
        case Loop() | Windows() | Each():
            return (node.body,)
        case Choose():
            return (node.then.body, node.otherwise.body)
        case _:
            return ()


def flat(body: tuple[Node, ...]) -> Iterator[Node]:
    """Every node of a body and of the bodies inside it, in program order."""
    for node in body:
        yield node
        for inner in bodies(node):
            yield from flat(inner)


def defines(node: Node) -> tuple[Value, ...]:
    """The values a node makes visible to the nodes after it in the same body."""
    match node:
        case Call() | Choose():
            return node.outs
        case New() | Fork() | Const() | Take() | Field() | Get():
            return (node.out,)
        case Loop():
            return (*(carry.out for carry in node.carry), *(collect.out for collect in node.collect))
        case Each():
            return tuple(collect.out for collect in node.collect)
        case Open() | Put() | Emit() | Windows():
            return ()


def binds(node: Node) -> tuple[Value, ...]:
    """The values a region makes visible inside its own body before the body runs."""
    match node:
        case Loop():
            return (node.step, *(carry.inner for carry in node.carry))
        case Windows():
            return (node.item, node.fresh)
        case Each():
            return (node.item, node.index)
        case _:
            return ()


def operands(node: Node) -> tuple[Value, ...]:
    """The values a node itself takes from the body it stands in (not what its own body uses)."""
    match node:
        case Call():
            return tuple(arg for _, arg in node.args if isinstance(arg, Value))
        case Fork() | Field():
            return (node.src,)
        case Take():
            return (node.src, node.index)
        case Put() | Emit():
            return (node.value,)
        case Get():
            return (node.default,)
        case Loop():
            inits = tuple(carry.init for carry in node.carry)
            return (node.steps, *inits) if isinstance(node.steps, Value) else inits
        case Each():
            return (node.items,)
        case Choose():
            return (node.flag,)
        case New() | Const() | Open() | Windows():
            return ()


def results(node: Node) -> tuple[Value, ...]:
    """The values a region takes out of its own bodies when they have run."""
    match node:
        case Loop():
            nexts = (carry.next for carry in node.carry)
            return (*nexts, *(collect.inner for collect in node.collect), *node.stop)
        case Each():
            return tuple(collect.inner for collect in node.collect)
        case Choose():
            return (*node.then.results, *node.otherwise.results)
        case _:
            return ()
