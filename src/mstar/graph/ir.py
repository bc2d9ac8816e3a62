"""Intermediate representation (IR) of a walk: a dataflow graph of immutable nodes in nested bodies.

A body is a tuple of nodes in program order. Program order alone is no dependency: two nodes are ordered only by the
values, states, streams and emissions that they share (see `flow`). Nodes with bodies (Loop, Windows, Each, Choose) are
regions; a value created inside a region is visible outside it only through a carry, a collection or the results of an
arm. A graph has no tensors and no per-request data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstar.graph.types import Type

Literal = None | bool | int | float | str | tuple["Literal", ...]
"""A constant, known at trace time."""


@dataclass(frozen=True, slots=True)
class Value:
    """A run-time value (SSA): its name is unique in the walk."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"%{self.name}"


Arg = Value | Literal


@dataclass(frozen=True, slots=True)
class Call:
    """Call of one op for one request.

    `extends` are the states that it writes; it only reads the other states in `args`. `static` arguments are constants
    that must be equal in all calls of a batch.
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
    """Create an empty state in a component."""

    component: str
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """Create an independent copy of a state."""

    src: Value
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Const:
    """A constant as a value, for example the initial value of a carry or the result of an arm."""

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
    """One field of a dataclass."""

    src: Value
    name: str
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Open:
    """Create a stream; inside a loop, a new one per iteration."""

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
    """The next item of a stream; `default` after the last item of finished producers."""

    stream: str
    default: Value
    out: Value
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """Send a value to the client. `clock` has its rate, for example rate=24000."""

    kind: str
    value: Value
    clock: tuple[tuple[str, int | float], ...] = ()
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Carry:
    """Loop-carried value: before the loop, in the body, for the next iteration, after the loop."""

    name: str
    init: Value
    inner: Value
    next: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Collect:
    """A value of each body of a region, collected into a list in order."""

    name: str
    inner: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """Repeat the body `steps` times, or until one of the `stop` flags is true at the end of an iteration."""

    steps: Value | int
    step: Value
    carry: tuple[Carry, ...]
    collect: tuple[Collect, ...]
    stop: tuple[Value, ...]
    body: tuple[Node, ...]
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Windows:
    """Run the body once per sliding window of a stream, in order.

    Window k ends at item `first + k * stride` and has at most the `size` items before it. `fresh` is the number of
    items that no earlier window had. With `flush`, the remaining items at the end make a last, shorter window.
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
    """Run the body once per element of `items`, in parallel."""

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
    """Run one of two arms; `outs` are the results of that arm."""

    flag: Value
    then: Arm
    otherwise: Arm
    outs: tuple[Value, ...]
    site: str = field(default="", compare=False)


Node = Call | New | Fork | Const | Take | Field | Open | Put | Get | Emit | Loop | Windows | Each | Choose
Region = Loop | Windows | Each | Choose


@dataclass(frozen=True, slots=True)
class Walk:
    """A complete walk: typed inputs, a body, and the values that it returns to the route."""

    name: str
    inputs: tuple[Value, ...]
    body: tuple[Node, ...]
    outputs: tuple[Value, ...] = ()
    is_tuple: bool = False
    """Whether the walk returns a tuple."""
    site: str = field(default="", compare=False)


def bodies(node: Node) -> tuple[tuple[Node, ...], ...]:
    """The bodies of a node: none, one, or the two arms of a choice."""
    match node:
        case Loop() | Windows() | Each():
            return (node.body,)
        case Choose():
            return (node.then.body, node.otherwise.body)
        case _:
            return ()


def flat(body: tuple[Node, ...]) -> Iterator[Node]:
    """All nodes of a body and its nested bodies, in program order."""
    for node in body:
        yield node
        for inner in bodies(node):
            yield from flat(inner)


def defines(node: Node) -> tuple[Value, ...]:
    """Values that a node defines for later nodes of the same body."""
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
    """Values that a region defines inside its body."""
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
    """Values of the enclosing body that a node itself uses (not those that its own body uses)."""
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
    """Values of its bodies that a region uses after they have run."""
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
